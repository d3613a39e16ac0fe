// `penstock drain`: the program of a `penstock run` that was given none. Takes every batch of every split, reads all of
// it, drops it: training splits for the given epochs, evaluation splits once at the end.
#include <cstdint>
#include <cstdio>

#include "launch/command.h"
#include "runtime/base/clock.h"
#include "runtime/client/data_loader.h"
#include "runtime/job/job.h"

namespace penstock {
namespace {

// Reading one byte a cache line is enough to have fetched the batch.
uint64_t touch(const Batch& batch) {
  uint64_t sum = 0;
  const TensorView image = batch.image();
  const auto* bytes = static_cast<const unsigned char*>(image.data);
  const size_t size = static_cast<size_t>(image.elements()) * size_of(image.dtype);
  for (size_t i = 0; i < size; i += 64) sum += bytes[i];
  return sum;
}

struct Limits {
  int epochs = 1;
  double seconds = 0;  // 0: all epochs
  std::string split;   // empty: all
};

int drain(const JobArguments& arguments, const Limits& limits) {
  const Job job = load_job(arguments.file, arguments.overrides);
  DataLoaderOptions options;
  options.overrides = arguments.overrides;
  const MonotonicClock clock;
  const Nanoseconds end = clock.now() + static_cast<Nanoseconds>(limits.seconds * 1e9);
  const auto over = [&] { return limits.seconds > 0 && clock.now() >= end; };
  volatile uint64_t sum = 0;  // volatile: the reading is the point, and must not be optimised away
  for (const Mode mode : {Mode::train, Mode::eval}) {
    for (const auto& [name, split] : job.splits) {
      if (split.mode != mode || (!limits.split.empty() && name != limits.split)) continue;
      DataLoader loader(arguments.file, name, options);
      const int iterations = mode == Mode::train ? limits.epochs : 1;
      for (int epoch = 0; epoch < iterations && !over(); ++epoch) {
        loader.set_epoch(epoch);
        for (const Batch& batch : loader) {
          sum = sum + touch(batch);
          if (over()) break;
        }
      }
    }
  }
  return 0;
}

}  // namespace

void add_drain(CLI::App& app, Chosen& chosen) {
  auto arguments = std::make_shared<JobArguments>();
  auto limits = std::make_shared<Limits>();
  CLI::App* command = app.add_subcommand("drain", "take every batch of every split and drop it");
  command->group("");  // not listed: `penstock run` without a program starts it
  add_job_arguments(*command, *arguments);
  command->add_option("--epochs", limits->epochs, "training epochs");
  command->add_option("--seconds", limits->seconds, "and no longer than that");
  command->add_option("--split", limits->split, "of this split alone");
  command->callback([=, &chosen] { chosen.run = [=] { return drain(*arguments, *limits); }; });
}

}  // namespace penstock
