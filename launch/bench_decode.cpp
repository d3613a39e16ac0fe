// `penstock bench decode`: images before finishing, as a loader's executor makes them: by its threads, or with GPUs.
// What it makes is compared with libjpeg-turbo's before anything is timed.
#include "launch/bench_decode.h"

#include <poll.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "launch/dataset_given.h"
#include "launch/init_job.h"
#include "runtime/base/clock.h"
#include "runtime/gpu/gpus.h"
#include "runtime/job/job.h"
#include "runtime/loader/executor.h"
#include "runtime/loader/loader.h"
#include "runtime/sample/sample_maker.h"
#include "runtime/sample/split_context.h"

namespace penstock {
namespace {

constexpr int64_t kChunk = 32;

struct DecodeRequest {
  JobArguments arguments;
  std::string split = "train";
  std::string device = "cpu";
  double seconds = 5;
  int64_t check = 64;
  bool json = false;
};

// The pipeline that training on a folder usually begins with.
Job job_of(const DecodeRequest& request) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(request.arguments.file, ignored)) {
    return load_job(request.arguments.file, request.arguments.overrides);
  }
  std::string line;
  (void)dataset_in(request.arguments.file, line);
  const size_t colon = line.find(": ");
  std::string value = line.substr(colon + 2);
  if (value.front() != '"') value = yaml_quoted(value);
  const std::string text =
      "splits: {" + request.split + ": {dataset: {" + line.substr(0, colon) + ": " + value +
      "}, batch_size: 1, pipeline: [{RandomResizedCrop: {size: 224}}, {RandomHorizontalFlip: {}}]}}\n";
  return load_job_text(text, "for " + request.arguments.file, request.arguments.overrides);
}

// An executor with works under way, all of one split.
class DecodeBench {
 public:
  DecodeBench(std::shared_ptr<const SplitContext> context, std::unique_ptr<Executor> executor, int works)
      : context_(std::move(context)), executor_(std::move(executor)) {
    const size_t bytes = chunk_layout(context_->fields(), kChunk).total_bytes;
    for (int i = 0; i < works; ++i) free_.emplace_back(bytes);
  }

  ExecutorFigures figures() const { return executor_->figures(); }
  int64_t unusable() const { return unusable_; }

  // Samples number `first` to `last`, counted over epochs; until `end` where one is given. How many were made.
  template <class See>
  int64_t make(int64_t first, int64_t last, Nanoseconds end, See see) {
    int64_t next = first;
    while (true) {
      while (!free_.empty() && next < last && (end == 0 || clock_.now() < end)) next = submit(next, last);
      if (under_way_ == 0) return next - first;
      pollfd fd{executor_->done_fd(), POLLIN, 0};
      (void)::poll(&fd, 1, 1000);
      while (auto work = executor_->next_done()) collect(*work, see);
    }
  }

 private:
  int64_t submit(int64_t next, int64_t last) {
    const int64_t size = context_->source().size();
    const int64_t until = std::min({next + kChunk, last, (next / size + 1) * size});
    auto work = std::make_unique<ChunkWork>();
    work->lease.epoch = static_cast<int32_t>(next / size);
    work->lease.lease.lease_stream = static_cast<uint64_t>(next);
    work->split = context_;
    for (int64_t i = next; i < until; ++i) work->lease.samples.push_back({i, i % size, 0, true});
    chunk_buffers_[next] = std::move(free_.back());
    free_.pop_back();
    work->memory = chunk_buffers_[next].data();
    ++under_way_;
    executor_->submit(std::move(work));
    return until;
  }

  template <class See>
  void collect(const ChunkWork& work, See see) {
    --under_way_;
    if (!work.failure.empty()) throw Error(ErrorKind::runtime, work.failure);
    for (const SampleRecord& record : work.records) unusable_ += record.bad ? 1 : 0;
    see(work);
    const auto chunk_buffer = chunk_buffers_.extract(static_cast<int64_t>(work.lease.lease.lease_stream));
    free_.push_back(std::move(chunk_buffer.mapped()));
  }

  std::shared_ptr<const SplitContext> context_;
  MonotonicClock clock_;
  int under_way_ = 0;
  int64_t unusable_ = 0;
  std::vector<std::vector<std::byte>> free_;
  std::map<int64_t, std::vector<std::byte>> chunk_buffers_;
  std::unique_ptr<Executor> executor_;  // goes first: it writes to the chunk buffers
};

// Error where a sample is not what libjpeg-turbo and the CPU's pipeline make of it. How many were compared.
int64_t compare(DecodeBench& bench, const std::shared_ptr<const SplitContext>& context, int64_t samples) {
  SampleMaker reference(context, {.own_jpeg = false});
  const FieldTable& table = context->fields();
  return bench.make(0, std::min(samples, context->source().size()), 0, [&](const ChunkWork& work) {
    const FieldLayout layout = chunk_layout(table, std::ssize(work.lease.samples));
    for (size_t i = 0; i < work.records.size(); ++i) {
      std::vector<std::vector<std::byte>> wanted;
      std::vector<std::byte*> fields;
      for (const FieldSpec& field : table) fields.push_back(wanted.emplace_back(field.bytes_per_sample()).data());
      const SampleRecord record = reference.make(work.lease.samples[i], work.lease.epoch, fields);
      bool same = record.bad == work.records[i].bad && record.index == work.records[i].index;
      for (size_t f = 0; f < table.size(); ++f) {
        const size_t bytes = table[f].bytes_per_sample();
        same = same && std::memcmp(work.memory + layout.offsets[f] + i * bytes, fields[f], bytes) == 0;
      }
      if (same) continue;
      throw Error(ErrorKind::runtime,
                  "'" + record.key + "' is not, byte for byte, what libjpeg-turbo and the CPU make of it",
                  "nothing was timed; please report the file, and what `penstock doctor` says");
    }
  });
}

nlohmann::ordered_json gpu_json(const GpuFigures& gpu, double elapsed) {
  const double count = std::max<double>(1, static_cast<double>(gpu.images));
  const auto ms = [&](int64_t ns) { return static_cast<double>(ns) / count * 1e-6; };
  nlohmann::ordered_json one{{"name", gpu.name},
                             {"number", gpu.number},
                             {"images", gpu.images},
                             {"images_per_s", static_cast<double>(gpu.images) / elapsed},
                             {"busy_fraction", as_seconds(gpu.active_ns) / elapsed},
                             {"copy_ms", ms(gpu.times.upload_ns + gpu.times.download_ns)},
                             {"decode_ms", ms(gpu.times.decode_ns())},
                             {"augment_ms", ms(gpu.times.augment_ns())},
                             {"deliver_ms", ms(gpu.deliver_ns)}};
  if (!gpu.failure.empty()) one["failed"] = gpu.failure;
  return one;
}

void print_stages(const char* who, const nlohmann::ordered_json& figures, std::initializer_list<const char*> stages) {
  for (const char* stage : stages) {
    std::printf("  %-11s ", stage);
    if (figures[stage].is_null()) {
      std::printf("%7s %s\n", "-", "within decode_ms");
    } else {
      std::printf("%7.3f an image, %s\n", figures[stage].get<double>(), who);
    }
  }
}

void print_decode(const nlohmann::ordered_json& result) {
  std::printf("split %s, device %s, %d threads: %.0f images/s\n", result["split"].get<std::string>().c_str(),
              result["device"].get<std::string>().c_str(), result["threads"].get<int>(),
              result["images_per_s"].get<double>());
  if (result.contains("no_gpu")) std::printf("  %s\n", result["no_gpu"].get<std::string>().c_str());
  std::printf("  %lld images compared with libjpeg-turbo's before: equal\n", result["checked"].get<long long>());
  if (result["unusable"] > 0) {
    std::printf("  %lld of the %lld samples are unusable: the figures are not those of good ones\n",
                result["unusable"].get<long long>(), result["images"].get<long long>());
  }
  print_stages("of a thread", result, {"read_ms", "entropy_ms", "decode_ms", "augment_ms"});
  for (const auto& gpu : result["gpus"]) {
    std::printf("  GPU %d (%s): %lld images, %.0f a second, busy %.0f %%\n", gpu["number"].get<int>(),
                gpu["name"].get<std::string>().c_str(), gpu["images"].get<long long>(),
                gpu["images_per_s"].get<double>(), 100 * gpu["busy_fraction"].get<double>());
    print_stages("of the GPU", gpu, {"copy_ms", "decode_ms", "augment_ms", "deliver_ms"});
    if (gpu.contains("failed")) std::printf("  it failed: %s\n", gpu["failed"].get<std::string>().c_str());
  }
}

int bench_decode(const DecodeRequest& request) {
  const Job job = job_of(request);
  LoaderOptions options = loader_options(job);
  options.in_flight_batches.exported_bytes = 0;  // nobody reads
  const auto context =
      SplitContext::open(resolve_split(job, request.split), posix_file_system(), {job.python}, options.sources);
  std::string no_gpu;
  bool gpus = request.device != "cpu";
  const auto executor = [&](const InFlightOptions& in_flight_batches) -> std::unique_ptr<Executor> {
    if (gpus) {
      try {
        return make_gpu_executor(
            options.threads, {}, open_gpus(options.gpus), in_flight_batches,
            [](const std::string& text) { std::fprintf(stderr, "penstock: %s\n", text.c_str()); },
            options.cpu_fraction);
      } catch (const Error& error) {
        if (request.device == "gpu") {
          throw Error(error.kind(), error.message(),
                      "`penstock doctor` says what this machine has; or say --device=cpu");
        }
        no_gpu = error.message();
        gpus = false;
      }
    }
    return make_cpu_executor(options.threads, {});
  };
  const int works =
      lease_depth(options.threads) + (gpus ? options.gpus.count * options.in_flight_batches.in_flight_batches : 0);
  int64_t checked = 0;
  {
    InFlightOptions ours = options.in_flight_batches;
    ours.library.reset();  // of whose pixels nothing is promised
    DecodeBench bench(context, executor(ours), works);
    checked = compare(bench, context, request.check);
  }
  DecodeBench bench(context, executor(options.in_flight_batches), works);
  const MonotonicClock clock;
  const Nanoseconds begun = clock.now();
  const int64_t images = bench.make(0, std::numeric_limits<int64_t>::max(),
                                    begun + static_cast<Nanoseconds>(request.seconds * 1e9), [](const ChunkWork&) {});
  const double elapsed = as_seconds(clock.now() - begun);
  const ExecutorFigures figures = bench.figures();
  const double count = std::max<double>(1, static_cast<double>(images));
  const auto ms = [&](int64_t ns) { return static_cast<double>(ns) / count * 1e-6; };
  nlohmann::ordered_json result{{"split", request.split},
                                {"device", gpus ? "gpu" : "cpu"},
                                {"threads", options.threads},
                                {"images", images},
                                {"unusable", bench.unusable()},
                                {"checked", checked},
                                {"images_per_s", static_cast<double>(images) / elapsed},
                                {"read_ms", ms(figures.read_ns)},
                                // What threads make themselves is decoded row by row, entropy and pixels in turns.
                                {"entropy_ms", gpus ? nlohmann::ordered_json(ms(figures.feed_ns)) : nullptr},
                                {"decode_ms", ms(figures.decode_ns - figures.feed_ns)},
                                {"augment_ms", ms(figures.augment_ns)},
                                {"gpus", nlohmann::ordered_json::array()}};
  for (const GpuFigures& gpu : figures.gpus) result["gpus"].push_back(gpu_json(gpu, elapsed));
  if (!no_gpu.empty()) result["no_gpu"] = no_gpu;
  if (request.json) {
    std::printf("%s\n", result.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
  } else {
    print_decode(result);
  }
  return 0;
}

}  // namespace

void add_bench_decode(CLI::App& bench, Chosen& chosen) {
  auto request = std::make_shared<DecodeRequest>();
  CLI::App* command =
      bench.add_subcommand("decode", "how fast CPU or GPUs make its images of the files; checked before it is timed");
  command->add_option("source", request->arguments.file, "job file, or folder (then: RandomResizedCrop 224 and a flip)")
      ->required()
      ->type_name("JOB.yaml|DIR");
  command->add_option("overrides", request->arguments.overrides, "key.sub=value, such as loader.threads=8");
  command->add_option("--split", request->split, "split")->capture_default_str();
  command
      ->add_option("--device", request->device, "cpu; gpu: fails where there is none; auto: GPUs where there are any")
      ->capture_default_str()
      ->check(CLI::IsMember({"cpu", "gpu", "auto"}));
  command->add_option("--seconds", request->seconds, "how long")->capture_default_str()->check(some_seconds());
  command->add_option("--check", request->check, "samples compared before, with what libjpeg-turbo gives")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  command->add_flag("--json", request->json, "one JSON object on stdout");
  command->callback([=, &chosen] { chosen.run = [=] { return bench_decode(*request); }; });
}

}  // namespace penstock
