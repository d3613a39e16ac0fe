// `penstock bench`: how fast this machine makes a split's samples, stage by stage, without any transport: the ceiling
// for a loader with as many threads.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <thread>

#include "launch/command.h"
#include "runtime/augment/finish.h"
#include "runtime/base/clock.h"
#include "runtime/config/job.h"
#include "runtime/loader/loader.h"
#include "runtime/loader/split_context.h"

namespace penstock {
namespace {

int bench(const JobArguments& arguments, const std::string& name, double seconds, bool json) {
  const Job job = load_job(arguments.file, arguments.overrides);
  const auto context =
      SplitContext::open(resolve_split(job, name), posix_file_system(), {job.python}, loader_options(job).sources);
  const Pipeline& pipeline = context->pipeline();
  const Finisher finisher = finisher_of(pipeline, pipeline.finish());
  const size_t image_bytes = context->fields()[0].bytes_per_sample();
  const auto classes = static_cast<size_t>(pipeline.soft_classes());
  // What mixes needs a whole batch; without, one finished image after the other takes the same place.
  const auto batch = classes > 0 ? static_cast<size_t>(context->split().split.batch_size) : size_t{1};
  std::atomic<int64_t> next{0};
  std::vector<MakeTimes> times(static_cast<size_t>(job.loader.threads));
  std::vector<DecodeCounts> decoded(times.size());
  std::vector<int64_t> finish_ns(times.size());
  std::vector<int64_t> mix_ns(times.size());
  std::vector<std::string> problems(times.size());
  std::atomic<int64_t> bad{0};
  const MonotonicClock clock;
  const Nanoseconds begun = clock.now();
  const Nanoseconds end = begun + static_cast<Nanoseconds>(seconds * 1e9);
  std::vector<std::thread> threads;
  std::atomic<int64_t> made{0};
  for (size_t t = 0; t < times.size(); ++t) {
    threads.emplace_back([&, t] {
      try {
        SampleMaker maker(context);
        std::vector<std::byte> raw(image_bytes);
        std::vector<std::byte> finished(batch * finisher.bytes_per_sample() + 64);
        std::vector<int64_t> labels(batch);
        std::vector<float> soft(batch * classes);
        std::vector<std::byte> other(finisher.bytes_per_sample() + 64);
        int64_t label = 0;
        size_t place = 0;
        std::vector<std::vector<std::byte>> others;
        std::vector<std::byte*> fields = {raw.data(), reinterpret_cast<std::byte*>(&label)};
        for (const FieldSpec& field : extra_fields(context->fields())) {
          fields.push_back(others.emplace_back(field.bytes_per_sample()).data());
        }
        while (clock.now() < end) {
          const int64_t i = next.fetch_add(1);
          const int64_t size = context->source().size();
          const PlannedSample sample{i, i % size, static_cast<uint16_t>((i / size) & 0xffff), true};
          const bool is_bad = maker.make(sample, 0, fields).bad;
          if (is_bad) ++bad;
          const Nanoseconds before = clock.now();
          finisher.run(reinterpret_cast<const uint8_t*>(raw.data()),
                       finished.data() + place * finisher.bytes_per_sample());
          for (size_t f = 2; f < fields.size(); ++f) {
            if (context->fields()[f].kind != FieldKind::image) continue;
            finisher.run(reinterpret_cast<const uint8_t*>(fields[f]), other.data());
          }
          const Nanoseconds finished_at = clock.now();
          finish_ns[t] += finished_at - before;
          ++made;
          labels[place] = is_bad ? 0 : label;
          if (++place < batch) continue;
          place = 0;
          if (classes == 0) continue;
          const Draws draws = pipeline.draw_batch(context->split().seed, 0, i, 0);
          problems[t] = mix_batch(pipeline, pipeline.finish(), draws, finished.data(), labels, soft.data(),
                                  [](size_t) { return std::string("of this batch"); });
          if (!problems[t].empty()) return;
          mix_ns[t] += clock.now() - finished_at;
        }
        times[t] = maker.times();
        decoded[t] = maker.decode_counts();
      } catch (const std::exception& error) {
        problems[t] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& problem : problems) {
    if (!problem.empty()) throw Error(ErrorKind::runtime, problem);
  }
  const double elapsed = static_cast<double>(clock.now() - begun) * 1e-9;
  MakeTimes all;
  DecodeCounts ways;
  int64_t finishing = 0;
  int64_t mixing = 0;
  for (size_t t = 0; t < times.size(); ++t) {
    all.read_ns += times[t].read_ns;
    all.decode_ns += times[t].decode_ns;
    all.augment_ns += times[t].augment_ns;
    ways.own_jpeg += decoded[t].own_jpeg;
    ways.indexed_jpeg += decoded[t].indexed_jpeg;
    ways.library_jpeg += decoded[t].library_jpeg;
    finishing += finish_ns[t];
    mixing += mix_ns[t];
  }
  const double count = std::max<double>(1, static_cast<double>(made.load()));
  nlohmann::ordered_json result{{"split", name},
                                {"threads", job.loader.threads},
                                {"images", made.load()},
                                {"unusable", bad.load()},
                                {"images_per_s", static_cast<double>(made.load()) / elapsed},
                                {"jpeg_own", ways.own_jpeg},
                                {"jpeg_indexed", ways.indexed_jpeg},
                                {"jpeg_library", ways.library_jpeg},
                                {"read_ms", static_cast<double>(all.read_ns) / count * 1e-6},
                                {"decode_ms", static_cast<double>(all.decode_ns) / count * 1e-6},
                                {"augment_ms", static_cast<double>(all.augment_ns) / count * 1e-6},
                                {"finish_ms", static_cast<double>(finishing) / count * 1e-6}};
  if (classes > 0) result["mix_ms"] = static_cast<double>(mixing) / count * 1e-6;
  if (json) {
    std::printf("%s\n", result.dump().c_str());
  } else {
    std::printf("split %s, %d threads: %.0f images/s\n", name.c_str(), job.loader.threads,
                result["images_per_s"].get<double>());
    if (bad > 0) {
      std::printf("  %lld of the %lld samples are unusable: the figures are not those of good ones\n",
                  static_cast<long long>(bad.load()), static_cast<long long>(made.load()));
    }
    for (const char* stage : {"read_ms", "decode_ms", "augment_ms", "finish_ms", "mix_ms"}) {
      if (!result.contains(stage)) continue;
      std::printf("  %-11s %7.3f an image and thread\n", stage, result[stage].get<double>());
    }
  }
  if (!json && ways.own_jpeg + ways.library_jpeg > 0) {
    std::printf("  JPEG: %lld by the decoder for baseline files (%lld of them entered at the crop), %lld by libjpeg-turbo\n",
                static_cast<long long>(ways.own_jpeg), static_cast<long long>(ways.indexed_jpeg),
                static_cast<long long>(ways.library_jpeg));
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
  command->callback([=, &chosen] { chosen.run = [=] { return bench(*arguments, *split, *seconds, *json); }; });
}

}  // namespace penstock
