// `penstock bench`: how fast this machine makes a split's samples, stage by stage, without any transport: the ceiling
// for a loader with as many threads.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <system_error>
#include <thread>

#include "launch/bench_decode.h"
#include "launch/command.h"
#include "runtime/base/clock.h"
#include "runtime/job/job.h"
#include "runtime/loader/loader.h"
#include "runtime/pixels/finish.h"
#include "runtime/sample/sample_maker.h"
#include "runtime/sample/split_context.h"
#include "runtime/sample/split_fields.h"

namespace penstock {
namespace {

// What all threads share.
struct Bench {
  std::shared_ptr<const SplitContext> context;
  const Pipeline& pipeline = context->pipeline();
  Finisher finisher = finisher_of(pipeline, pipeline.finish());
  size_t classes = static_cast<size_t>(pipeline.soft_classes());
  // What mixes needs a whole batch; without, one finished image after the other takes the same place.
  size_t batch = classes > 0 ? static_cast<size_t>(context->split().split.batch_size) : size_t{1};
  MonotonicClock clock;
  Nanoseconds end = 0;
  std::atomic<int64_t> next{0};
  std::atomic<int64_t> made{0};
  std::atomic<int64_t> bad{0};
};

// What one thread did, or several.
struct Spent {
  MakeTimes times;
  DecodeCounts decoded;
  int64_t finish_ns = 0;
  int64_t mix_ns = 0;
  std::string problem;

  void add(const Spent& other) {
    times.read_ns += other.times.read_ns;
    times.decode_ns += other.times.decode_ns;
    times.augment_ns += other.times.augment_ns;
    decoded.own_jpeg += other.decoded.own_jpeg;
    decoded.indexed_jpeg += other.decoded.indexed_jpeg;
    decoded.library_jpeg += other.decoded.library_jpeg;
    finish_ns += other.finish_ns;
    mix_ns += other.mix_ns;
  }
};

// One thread, until the time is over.
void make_samples(Bench& bench, Spent& spent) {
  const SplitContext& context = *bench.context;
  const Finisher& finisher = bench.finisher;
  SampleMaker maker(bench.context);
  std::vector<std::byte> raw(context.fields()[0].bytes_per_sample());
  std::vector<std::byte> finished(bench.batch * finisher.bytes_per_sample() + 64);
  std::vector<int64_t> labels(bench.batch);
  std::vector<float> soft(bench.batch * bench.classes);
  std::vector<std::byte> other(finisher.bytes_per_sample() + 64);
  int64_t label = 0;
  size_t place = 0;
  std::vector<std::vector<std::byte>> others;
  std::vector<std::byte*> fields = {raw.data(), reinterpret_cast<std::byte*>(&label)};
  for (const FieldSpec& field : extra_fields(context.fields())) {
    fields.push_back(others.emplace_back(field.bytes_per_sample()).data());
  }
  while (bench.clock.now() < bench.end) {
    const int64_t i = bench.next.fetch_add(1);
    const int64_t size = context.source().size();
    const PlannedSample sample{i, i % size, static_cast<uint16_t>((i / size) & 0xffff), true};
    const bool is_bad = maker.make(sample, 0, fields).bad;
    if (is_bad) ++bench.bad;
    const Nanoseconds before = bench.clock.now();
    finisher.run(reinterpret_cast<const uint8_t*>(raw.data()), finished.data() + place * finisher.bytes_per_sample());
    for (size_t f = 2; f < fields.size(); ++f) {
      if (context.fields()[f].kind != FieldKind::image) continue;
      finisher.run(reinterpret_cast<const uint8_t*>(fields[f]), other.data());
    }
    const Nanoseconds finished_at = bench.clock.now();
    spent.finish_ns += finished_at - before;
    ++bench.made;
    labels[place] = is_bad ? 0 : label;
    if (++place < bench.batch) continue;
    place = 0;
    if (bench.classes == 0) continue;
    const Draws draws = bench.pipeline.draw_batch(context.split().seed, 0, i, 0);
    spent.problem = mix_batch(bench.pipeline, bench.pipeline.finish(), draws, finished.data(), labels, soft.data(),
                              [](size_t) { return std::string("of this batch"); });
    if (!spent.problem.empty()) return;
    spent.mix_ns += bench.clock.now() - finished_at;
  }
  spent.times = maker.times();
  spent.decoded = maker.decode_counts();
}

void print(const nlohmann::ordered_json& result) {
  std::printf("split %s, %d threads: %.0f images/s\n", result["split"].get<std::string>().c_str(),
              result["threads"].get<int>(), result["images_per_s"].get<double>());
  if (result["unusable"] > 0) {
    std::printf("  %lld of the %lld samples are unusable: the figures are not those of good ones\n",
                result["unusable"].get<long long>(), result["images"].get<long long>());
  }
  for (const char* stage : {"read_ms", "decode_ms", "augment_ms", "finish_ms", "mix_ms"}) {
    if (!result.contains(stage)) continue;
    std::printf("  %-11s %7.3f an image and thread\n", stage, result[stage].get<double>());
  }
  const auto own = result["jpeg_own"].get<long long>();
  const auto library = result["jpeg_library"].get<long long>();
  if (own + library > 0) {
    std::printf("  JPEG: %lld by our own decoder (%lld of them entered at the crop), %lld by libjpeg-turbo\n", own,
                result["jpeg_indexed"].get<long long>(), library);
  }
}

int bench(const JobArguments& arguments, const std::string& name, double seconds, bool json) {
  const Job job = load_job(arguments.file, arguments.overrides);
  Bench bench{.context = SplitContext::open(resolve_split(job, name), posix_file_system(), {job.python},
                                            loader_options(job).sources)};
  std::vector<Spent> spent(static_cast<size_t>(job.loader.threads));
  const Nanoseconds begun = bench.clock.now();
  bench.end = begun + static_cast<Nanoseconds>(seconds * 1e9);
  std::vector<std::jthread> threads;
  try {
    for (Spent& one : spent) {
      threads.emplace_back([&bench, &one] {
        try {
          make_samples(bench, one);
        } catch (const std::exception& error) {
          one.problem = error.what();
        }
      });
    }
  } catch (const std::system_error& problem) {
    throw Error(ErrorKind::runtime,
                "cannot start " + std::to_string(job.loader.threads) + " threads: " + problem.what(),
                "lower loader.threads");
  }
  for (std::jthread& thread : threads) thread.join();
  const double elapsed = as_seconds(bench.clock.now() - begun);
  Spent all;
  for (const Spent& one : spent) {
    if (!one.problem.empty()) throw Error(ErrorKind::runtime, one.problem);
    all.add(one);
  }
  const double count = std::max<double>(1, static_cast<double>(bench.made.load()));
  const auto ms = [&](int64_t ns) { return static_cast<double>(ns) / count * 1e-6; };
  nlohmann::ordered_json result{{"split", name},
                                {"threads", job.loader.threads},
                                {"images", bench.made.load()},
                                {"unusable", bench.bad.load()},
                                {"images_per_s", static_cast<double>(bench.made.load()) / elapsed},
                                {"jpeg_own", all.decoded.own_jpeg},
                                {"jpeg_indexed", all.decoded.indexed_jpeg},
                                {"jpeg_library", all.decoded.library_jpeg},
                                {"read_ms", ms(all.times.read_ns)},
                                {"decode_ms", ms(all.times.decode_ns)},
                                {"augment_ms", ms(all.times.augment_ns)},
                                {"finish_ms", ms(all.finish_ns)}};
  if (bench.classes > 0) result["mix_ms"] = ms(all.mix_ns);
  if (json) {
    std::printf("%s\n", result.dump().c_str());
  } else {
    print(result);
  }
  return 0;
}

}  // namespace

void add_bench(CLI::App& app, Chosen& chosen) {
  auto arguments = std::make_shared<JobArguments>();
  auto split = std::make_shared<std::string>("train");
  auto seconds = std::make_shared<double>(5);
  auto json = std::make_shared<bool>(false);
  CLI::App* command = app.add_subcommand("bench", "how fast this machine makes a split's samples, stage by stage");
  add_job_arguments(*command, *arguments);
  command->add_option("--split", *split, "split")->capture_default_str();
  command->add_option("--seconds", *seconds, "how long")->capture_default_str()->check(some_seconds());
  command->add_flag("--json", *json, "one JSON object on stdout");
  // `bench decode` has a source of its own.
  command->get_option("job")->required(false);
  add_bench_decode(*command, chosen);
  command->callback([=, &chosen] {
    if (!command->get_subcommands().empty()) return;
    if (arguments->file.empty()) throw CLI::RequiredError("job");
    chosen.run = [=] { return bench(*arguments, *split, *seconds, *json); };
  });
}

}  // namespace penstock
