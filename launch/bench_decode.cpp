// `penstock bench decode`: images before finishing, as a loader's executor makes them: by its threads, or with cards. What
// it makes is compared with libjpeg-turbo's before anything is timed.
#include "launch/bench_decode.h"

#include <poll.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "launch/dataset_given.h"
#include "launch/init_job.h"
#include "runtime/base/clock.h"
#include "runtime/gpu/cards.h"
#include "runtime/job/job.h"
#include "runtime/loader/executor.h"
#include "runtime/loader/loader.h"
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

// Of a folder: what training usually begins with.
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
  const std::string text = "splits: {" + request.split + ": {dataset: {" + line.substr(0, colon) + ": " + value +
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
    work->lease.lease.stream = static_cast<uint64_t>(next);
    work->split = context_;
    for (int64_t i = next; i < until; ++i) work->lease.samples.push_back({i, i % size, 0, true});
    cells_[next] = std::move(free_.back());
    free_.pop_back();
    work->memory = cells_[next].data();
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
    const auto cell = cells_.extract(static_cast<int64_t>(work.lease.lease.stream));
    free_.push_back(std::move(cell.mapped()));
  }

  std::shared_ptr<const SplitContext> context_;
  MonotonicClock clock_;
  int under_way_ = 0;
  int64_t unusable_ = 0;
  std::vector<std::vector<std::byte>> free_;
  std::map<int64_t, std::vector<std::byte>> cells_;
  std::unique_ptr<Executor> executor_;  // goes first: it writes to the cells
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

nlohmann::ordered_json card_json(const CardFigures& card, double elapsed) {
  const double count = std::max<double>(1, static_cast<double>(card.images));
  const auto ms = [&](int64_t ns) { return static_cast<double>(ns) / count * 1e-6; };
  nlohmann::ordered_json one{{"name", card.name},
                             {"number", card.number},
                             {"images", card.images},
                             {"images_per_s", static_cast<double>(card.images) / elapsed},
                             {"busy_fraction", as_seconds(card.active_ns) / elapsed},
                             {"copy_ms", ms(card.times.upload_ns + card.times.download_ns)},
                             {"decode_ms", ms(card.times.decode_ns())},
                             {"augment_ms", ms(card.times.augment_ns())},
                             {"deliver_ms", ms(card.deliver_ns)}};
  if (!card.failure.empty()) one["failed"] = card.failure;
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
  if (result.contains("no_card")) std::printf("  %s\n", result["no_card"].get<std::string>().c_str());
  std::printf("  %lld images compared with libjpeg-turbo's before: equal\n", result["checked"].get<long long>());
  if (result["unusable"] > 0) {
    std::printf("  %lld of the %lld samples are unusable: the figures are not those of good ones\n",
                result["unusable"].get<long long>(), result["images"].get<long long>());
  }
  print_stages("of a thread", result, {"read_ms", "entropy_ms", "decode_ms", "augment_ms"});
  for (const auto& card : result["cards"]) {
    std::printf("  card %d (%s): %lld images, %.0f a second, busy %.0f %%\n", card["number"].get<int>(),
                card["name"].get<std::string>().c_str(), card["images"].get<long long>(),
                card["images_per_s"].get<double>(), 100 * card["busy_fraction"].get<double>());
    print_stages("of the card", card, {"copy_ms", "decode_ms", "augment_ms", "deliver_ms"});
    if (card.contains("failed")) std::printf("  it failed: %s\n", card["failed"].get<std::string>().c_str());
  }
}

int bench_decode(const DecodeRequest& request) {
  const Job job = job_of(request);
  LoaderOptions options = loader_options(job);
  options.card_lanes.shared_bytes = 0;  // nobody reads
  const auto context = SplitContext::open(resolve_split(job, request.split), posix_file_system(), {job.python},
                                          options.sources);
  std::string no_card;
  bool cards = request.device != "cpu";
  const auto executor = [&](const CardLanesOptions& lanes) -> std::unique_ptr<Executor> {
    if (cards) {
      try {
        return make_card_executor(options.threads, {}, open_cards(options.cards), lanes,
                                  [](const std::string& text) { std::fprintf(stderr, "penstock: %s\n", text.c_str()); },
                                  options.cpu_fraction);
      } catch (const Error& error) {
        if (request.device == "card") {
          throw Error(error.kind(), error.message(), "`penstock doctor` says what this machine has; or say --device=cpu");
        }
        no_card = error.message();
        cards = false;
      }
    }
    return make_cpu_executor(options.threads, {});
  };
  const int works = lease_depth(options.threads) + (cards ? options.cards.count * options.card_lanes.lanes : 0);
  int64_t checked = 0;
  {
    CardLanesOptions ours = options.card_lanes;
    ours.library.reset();  // of whose pixels nothing is promised
    DecodeBench bench(context, executor(ours), works);
    checked = compare(bench, context, request.check);
  }
  DecodeBench bench(context, executor(options.card_lanes), works);
  const MonotonicClock clock;
  const Nanoseconds begun = clock.now();
  const int64_t images = bench.make(0, std::numeric_limits<int64_t>::max(),
                                    begun + static_cast<Nanoseconds>(request.seconds * 1e9), [](const ChunkWork&) {});
  const double elapsed = as_seconds(clock.now() - begun);
  const ExecutorFigures figures = bench.figures();
  const double count = std::max<double>(1, static_cast<double>(images));
  const auto ms = [&](int64_t ns) { return static_cast<double>(ns) / count * 1e-6; };
  nlohmann::ordered_json result{{"split", request.split},
                                {"device", cards ? "card" : "cpu"},
                                {"threads", options.threads},
                                {"images", images},
                                {"unusable", bench.unusable()},
                                {"checked", checked},
                                {"images_per_s", static_cast<double>(images) / elapsed},
                                {"read_ms", ms(figures.read_ns)},
                                // What threads make themselves is decoded row by row, entropy and pixels in turns.
                                {"entropy_ms", cards ? nlohmann::ordered_json(ms(figures.feed_ns)) : nullptr},
                                {"decode_ms", ms(figures.decode_ns - figures.feed_ns)},
                                {"augment_ms", ms(figures.augment_ns)},
                                {"cards", nlohmann::ordered_json::array()}};
  for (const CardFigures& card : figures.cards) result["cards"].push_back(card_json(card, elapsed));
  if (!no_card.empty()) result["no_card"] = no_card;
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
      bench.add_subcommand("decode", "how fast CPU or cards make its images of the files; checked before it is timed");
  command->add_option("source", request->arguments.file, "job file, or folder (then: RandomResizedCrop 224 and a flip)")
      ->required()
      ->type_name("JOB.yaml|DIR");
  command->add_option("overrides", request->arguments.overrides, "key.sub=value, such as loader.threads=8");
  command->add_option("--split", request->split, "split")->capture_default_str();
  command->add_option("--device", request->device, "cpu; card: fails where there is none; auto: cards where there are any")
      ->capture_default_str()
      ->check(CLI::IsMember({"cpu", "card", "auto"}));
  command->add_option("--seconds", request->seconds, "how long")->capture_default_str()->check(some_seconds());
  command->add_option("--check", request->check, "samples compared before, with what libjpeg-turbo gives")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  command->add_flag("--json", request->json, "one JSON object on stdout");
  command->callback([=, &chosen] { chosen.run = [=] { return bench_decode(*request); }; });
}

}  // namespace penstock
