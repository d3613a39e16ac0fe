// How fast virtual time passes: the bare loop, and fleets with the production balancer.
//
//   build/release/bench_simulate [pending=100000] [events=10000000]
//   build/release/bench_simulate fleet LOADERS TRAINERS STEPS
//
// The bare loop: each event adds another one, at a time that is drawn, and checks the order. A fleet: loaders of two
// threads on nodes of eight, trainers on others, as many samples a batch as the loaders make in a step's time; every
// batch is checked to be delivered.
#include <sys/resource.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string_view>

#include "runtime/simulate/event_loop.h"
#include "runtime/simulate/fleet/fleet_world.h"
#include "runtime/simulate/seeded_random.h"

namespace {

using penstock::EventLoop;
using penstock::Nanoseconds;
using penstock::SeededRandom;

struct Source {
  EventLoop loop;
  SeededRandom random{1};
  int64_t happened = 0;
  Nanoseconds last = 0;
  bool ordered = true;

  void add() {
    loop.after(random.below(1'000'000), [this] {
      ordered = ordered && loop.now() >= last;
      last = loop.now();
      ++happened;
      add();
    });
  }
};

// Processor time: other programs on the machine do not count.
double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

int bare_loop(int64_t pending, int64_t events) {
  Source source;
  for (int64_t i = 0; i < pending; ++i) source.add();
  while (source.happened < events / 10) source.loop.step();
  const double begun = cpu_seconds();
  const int64_t before = source.happened;
  while (source.happened < before + events) source.loop.step();
  const double took = cpu_seconds() - begun;
  if (!source.ordered || source.loop.pending() != static_cast<size_t>(pending)) {
    std::fprintf(stderr, "bench_simulate: the loop is not in order\n");
    return 1;
  }
  std::printf("%.2f million events a second of one core, in the bare loop, %lld pending\n",
              static_cast<double>(events) / took / 1e6, static_cast<long long>(pending));
  return 0;
}

penstock::FleetSpec fleet_of(int64_t loaders, int64_t trainers, int64_t steps) {
  using penstock::Distribution;
  constexpr int64_t kOnANode = 8;
  constexpr double kStep_ns = 200e6;
  penstock::FleetSpec spec;
  spec.nodes.assign(static_cast<size_t>((trainers + loaders) / kOnANode + 2), {.bytes_per_s = 12.5e9});
  for (int64_t t = 0; t < trainers; ++t) {
    spec.trainers.push_back({static_cast<int>(t / kOnANode), Distribution::lognormal(kStep_ns, 0.05)});
  }
  const int64_t first = (trainers + kOnANode - 1) / kOnANode;
  for (int64_t l = 0; l < loaders; ++l) spec.loaders.push_back({.node = static_cast<int>(first + l / kOnANode)});
  spec.batch_size = 32;
  spec.dataset_size = spec.batch_size * trainers * steps;
  // Nine tenths of what the loaders' threads have time for.
  const double threads = 2.0 * static_cast<double>(loaders) / static_cast<double>(trainers);
  spec.samples.work_ns =
      Distribution::lognormal(0.9 * threads * kStep_ns / static_cast<double>(spec.batch_size) / 1.1, 0.4);
  spec.samples.payload_bytes = 150'528;
  spec.chunk_samples = 8;
  return spec;
}

int fleet(int64_t loaders, int64_t trainers, int64_t steps) {
  const double begun = cpu_seconds();
  const penstock::FleetResult result = penstock::simulate_fleet(fleet_of(loaders, trainers, steps));
  const double took = cpu_seconds() - begun;
  if (!result.failure.empty()) {
    std::fprintf(stderr, "bench_simulate: %s\n", result.failure.c_str());
    return 1;
  }
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto events = static_cast<double>(result.events), decisions = static_cast<double>(result.decisions);
  std::printf(
      "%lld loaders x %lld trainers x %lld steps: %.1f s of one core, %.2f GiB; %.1f million events (%.2f million/s), "
      "of them %.1f "
      "million of the balancer (%.2f million/s); %.1f virtual s, stalled %.4f\n",
      static_cast<long long>(loaders), static_cast<long long>(trainers), static_cast<long long>(steps), took,
      static_cast<double>(usage.ru_maxrss) / 1048576, events / 1e6, events / took / 1e6, decisions / 1e6,
      decisions / took / 1e6, penstock::as_seconds(result.took_ns), result.stalled);
  return 0;
}

}  // namespace

int main(int argc, char** argv) try {
  const bool of_fleet = argc > 1 && std::string_view(argv[1]) == "fleet";
  const auto number = [&](int at, int64_t usual) { return argc > at ? std::atoll(argv[at]) : usual; };
  const int64_t first = number(of_fleet ? 2 : 1, of_fleet ? 100 : 100'000);
  const int64_t second = number(of_fleet ? 3 : 2, of_fleet ? 100 : 10'000'000);
  const int64_t third = number(4, 100);
  if (first < 1 || second < 1 || third < 1) {
    std::fprintf(
        stderr,
        "bench_simulate: numbers above 0: events that are pending, events to time; or fleet LOADERS TRAINERS STEPS\n");
    return 2;
  }
  return of_fleet ? fleet(first, second, third) : bare_loop(first, second);
} catch (const std::exception& problem) {
  std::fprintf(stderr, "bench_simulate: %s\n", problem.what());
  return 1;
}
