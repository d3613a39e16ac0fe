// Whole jobs on fleets in virtual time: against what can be said exactly, and under faults.
#include "runtime/simulate/fleet/fleet_world.h"

#include <doctest/doctest.h>

#include <string>

#include "runtime/base/error.h"

namespace penstock {
namespace {

constexpr Nanoseconds kWork = 3 * kMillisecond;  // of a sample

// One node, on which messages take no time: 1 trainer, `loaders` of one thread, 12 samples a batch.
FleetSpec small(int loaders, Nanoseconds step_ns, int64_t steps = 50) {
  FleetSpec spec;
  spec.trainers = {{.node = 0, .step_ns = Distribution::constant(step_ns)}};
  for (int i = 0; i < loaders; ++i) spec.loaders.push_back({.node = 0, .threads = 1});
  spec.samples.work_ns = Distribution::constant(kWork);
  spec.samples.payload_bytes = 150'528;
  spec.overhead.local_message_ns = 0;
  spec.batch_size = 12;
  spec.dataset_size = 12 * steps;
  return spec;
}

FleetSpec far_loaders(int loaders, Nanoseconds step_ns, double bytes_per_s, int64_t steps = 100) {
  FleetSpec spec = small(loaders, step_ns, steps);
  spec.nodes = {{.bytes_per_s = bytes_per_s}, {.bytes_per_s = bytes_per_s}};
  for (FleetLoader& loader : spec.loaders) loader.node = 1;
  return spec;
}

FleetResult run(const FleetSpec& spec, uint64_t seed = 1) {
  const FleetResult result = simulate_fleet(spec, {.seed = seed});
  CHECK(result.failure == "");
  return result;
}

TEST_CASE("D/D/1: a job of constant times takes what its slower side takes, to the nanosecond") {
  for (const Nanoseconds step : {1 * kMillisecond, 20 * kMillisecond, 35 * kMillisecond}) {
    const FleetResult loader_bound = run(small(1, step));
    CHECK(loader_bound.took_ns == 50 * 12 * kWork + step);  // 36 ms a batch, and the last step
    CHECK(loader_bound.images == 600);
  }
  for (const Nanoseconds step : {36 * kMillisecond, 37 * kMillisecond, kSecond}) {
    const FleetResult trainer_bound = run(small(1, step));
    CHECK(trainer_bound.took_ns == 12 * kWork + 50 * step);
    CHECK(trainer_bound.waits.most() == 12 * kWork);
    CHECK(trainer_bound.waits.quantile(0.9) < 1024);  // the first batch alone is waited for
  }
}

TEST_CASE("loaders of other speeds add up") {
  FleetSpec spec = small(3, 0, 400);
  spec.loaders[1].speed = SpeedProfile({{0, kFullSpeed / 2}});
  spec.loaders[2].speed = SpeedProfile({{0, kFullSpeed * 4 / 10}});
  spec.prefetch = 4;  // with fewer the slow ones hold batches up
  const FleetResult result = run(spec);
  const double bound = 1.9 * 1e9 / kWork;  // images a second
  CHECK(result.images_per_s <= bound);
  CHECK(result.images_per_s >= 0.97 * bound);
}

TEST_CASE("trainers wait for the slowest at each step, and not where there is no barrier") {
  FleetSpec spec = small(8, 10 * kMillisecond, 100);
  spec.dataset_size *= 2;
  spec.trainers.push_back({.node = 0, .step_ns = Distribution::constant(30 * kMillisecond)});
  const FleetResult together = run(spec);
  CHECK(together.steps_done_ns.size() == 100);
  CHECK(together.took_ns >= 100 * 30 * kMillisecond);
  CHECK(together.took_ns <= 100 * 30 * kMillisecond + 100 * kMillisecond);
  spec.barrier = false;
  CHECK(run(spec).took_ns <= together.took_ns);
}

TEST_CASE("what a job loses is waited for: for a batch, or at the barrier for one that waits for its batch") {
  FleetSpec spec = small(4, 5 * kMillisecond, 400);
  for (int i = 1; i < 4; ++i) spec.trainers.push_back(spec.trainers.front());
  spec.samples.work_ns = Distribution::lognormal(3e6, 0.8);
  const FleetResult bound_by_loaders = run(spec);
  const double pace = 4 * 12 / as_seconds(5 * kMillisecond + spec.overhead.hand_over_ns);
  CHECK(bound_by_loaders.images_per_s < 0.2 * pace);
  CHECK(bound_by_loaders.at_barrier > 0.1);
  CHECK(1 - bound_by_loaders.stalled - bound_by_loaders.at_barrier ==
        doctest::Approx(bound_by_loaders.images_per_s / pace).epsilon(0.05));
  spec.barrier = false;
  CHECK(run(spec).at_barrier == 0);
}

TEST_CASE("one seed gives one log, and another one another") {
  FleetSpec spec = far_loaders(4, 5 * kMillisecond, 1e8);
  spec.samples.work_ns = Distribution::lognormal(3e6, 0.8);
  spec.samples.bytes = Distribution::lognormal(1e5, 0.5);
  spec.samples.sizes_known = true;
  spec.loaders[1].dies_at = 300 * kMillisecond;
  spec.loaders[1].seen_after_ns = kMillisecond;
  std::string first, second;
  const FleetResult a = simulate_fleet(spec, {.seed = 5, .text = &first});
  const FleetResult b = simulate_fleet(spec, {.seed = 5, .text = &second});
  CHECK(first == second);
  CHECK(a.log == b.log);
  CHECK(a.log != simulate_fleet(spec, {.seed = 6}).log);
  CHECK(first.find(" die 1 1 ") != std::string::npos);
  CHECK(a.log == UINT64_C(8641225718069712713));  // and with every compiler
}

TEST_CASE("a link that is too slow is what limits, and it is full") {
  const double bytes_per_s = 20e6;
  const FleetResult result = run(far_loaders(8, kMillisecond, bytes_per_s));
  const double bound = bytes_per_s / 150'528;
  CHECK(result.images_per_s <= bound);
  CHECK(result.images_per_s >= 0.95 * bound);
  CHECK(result.busiest_link >= 0.95);
  CHECK(result.bytes_between_nodes == 1200 * 150'528);
  CHECK(run(far_loaders(8, kMillisecond, 0)).busiest_link == 0);
}

TEST_CASE("racks: an uplink that is narrower than the nics limits, for those alone that cross it") {
  FleetSpec spec = far_loaders(8, kMillisecond, 1e9);
  spec.racks = {{.bytes_per_s = 20e6}, {.bytes_per_s = 20e6}};
  CHECK(run(spec).images_per_s >= 1000);
  spec.nodes[1].rack = 1;
  const FleetResult result = run(spec);
  CHECK(result.images_per_s <= 20e6 / 150'528);
  CHECK(result.images_per_s >= 0.95 * 20e6 / 150'528);
}

TEST_CASE("a disk of so many reads a second limits, in the first epoch alone where data is cached") {
  FleetSpec spec = small(4, 0, 50);
  spec.epochs = 2;
  spec.storage.reads_per_s = 200;
  const FleetResult cold = run(spec);
  CHECK(cold.images_per_s <= 200 * 1.02);
  CHECK(cold.images_per_s >= 190);
  spec.storage.cached = true;
  const FleetResult warm = run(spec);
  CHECK(warm.took_ns - cold.took_ns / 2 <= 600 * kWork / 4 + 100 * kMillisecond);
  CHECK(warm.images == cold.images);
}

TEST_CASE("reads are under way together: latency alone costs a first batch, not the rate") {
  FleetSpec spec = small(4, 0, 100);
  spec.storage.reads_per_s = 1e6;
  spec.storage.latency_ns = Distribution::constant(5 * kMillisecond);
  spec.prefetch = 8;  // samples that may be read ahead are those of batches that have room
  CHECK(run(spec).images_per_s >= 0.95 * 4e9 / kWork);
}

TEST_CASE("a killed loader costs its share, and what it had is made by others") {
  FleetSpec spec = small(4, 0, 400);
  spec.loaders[2].dies_at = kSecond;
  spec.loaders[2].seen_after_ns = 5 * kMillisecond;
  const FleetResult result = run(spec);
  const double made = 400 * 12 - 4e9 / kWork;  // after its death
  CHECK(as_seconds(result.took_ns) == doctest::Approx(1 + made * as_seconds(kWork) / 3).epsilon(0.02));
  CHECK(result.regranted > 0);
  spec.loaders[2].comes_back_at = 2 * kSecond;
  CHECK(run(spec).took_ns < result.took_ns);
}

TEST_CASE("a loader that is stopped is found out, given up, and comes back") {
  FleetSpec spec = small(3, 0, 1000);
  spec.balancer.lost_after_ns = kSecond;
  spec.loaders[1].speed = SpeedProfile({{kSecond, 0}, {4 * kSecond, kFullSpeed}});
  std::string text;
  const FleetResult result = simulate_fleet(spec, {.text = &text});
  CHECK(result.failure == "");
  CHECK(text.find(" join 1 3 ") != std::string::npos);  // 1 at first, 2 when it heard that it was given up
  const double made = 1000 * 12 - (3e9 + 3 * 2e9) / kWork;
  // Until its silence is noticed, after a quarter of lost_after, the others wait for the chunks that it holds.
  const double waited = as_seconds(result.took_ns) - (4 + made * as_seconds(kWork) / 3);
  CHECK(waited >= 0);
  CHECK(waited <= 0.25 + 0.1 + 0.05);
}

TEST_CASE("a job whose loaders are all lost fails, with the balancer's reason") {
  FleetSpec spec = small(2, 0);
  for (FleetLoader& loader : spec.loaders) {
    loader.dies_at = 100 * kMillisecond;
    loader.seen_after_ns = kMillisecond;
  }
  const FleetResult result = simulate_fleet(spec);
  CHECK(result.failure.find("no loader is left") != std::string::npos);
  CHECK(result.batches < 50);
}

TEST_CASE("a coordinator that takes long for each message is what limits in the end") {
  FleetSpec spec = small(16, 0, 200);
  spec.samples.work_ns = Distribution::constant(100 * kMicrosecond);
  const FleetResult free = run(spec);
  spec.overhead.event_ns = kMillisecond;
  const FleetResult busy = run(spec);
  CHECK(as_seconds(busy.took_ns) >= 1e-3 * static_cast<double>(busy.decisions) * 0.9);
  CHECK(busy.took_ns > 5 * free.took_ns);
}

TEST_CASE("policies that know no costs hold a fleet up by its slow loaders; alike ones they serve as well") {
  FleetSpec spec = small(8, 0, 300);
  spec.prefetch = 4;
  const auto rate = [&spec](FleetPolicy policy) {
    spec.policy = policy;
    return run(spec).images_per_s;
  };
  const double alike = rate(FleetPolicy::production);
  for (const FleetPolicy other : {FleetPolicy::fixed, FleetPolicy::round_robin, FleetPolicy::shortest_queue}) {
    CHECK(rate(other) >= 0.9 * alike);
  }
  CHECK(rate(FleetPolicy::power_of_two) >= 0.6 * alike);
  spec.loaders[3].speed = SpeedProfile({{0, kFullSpeed / 10}});
  spec.dataset_size *= 10;  // a loader is known to be slow after eight chunks, which take it a second
  const double balanced = rate(FleetPolicy::production);
  CHECK(balanced >= 0.8 * alike);
  for (const FleetPolicy other : {FleetPolicy::fixed, FleetPolicy::round_robin, FleetPolicy::power_of_two}) {
    CHECK(rate(other) < 0.5 * balanced);
  }
  CHECK(rate(FleetPolicy::shortest_queue) < balanced);
}

TEST_CASE("policies wait for loaders that are far, and use those that come late") {
  FleetSpec spec = far_loaders(4, kMillisecond, 1e9, 50);
  for (FleetNode& node : spec.nodes) node.latency_ns = 20 * kMillisecond;
  spec.loaders[3].joins_at = 500 * kMillisecond;
  for (const FleetPolicy policy :
       {FleetPolicy::fixed, FleetPolicy::round_robin, FleetPolicy::shortest_queue, FleetPolicy::power_of_two}) {
    spec.policy = policy;
    const FleetResult result = run(spec);
    CHECK(result.loaders[3].chunks > 0);
  }
}

TEST_CASE("what waits behind a dead loader's chunk on a slow link is lost with it") {
  FleetSpec spec = far_loaders(3, 0, 5e6, 60);
  spec.loaders[1].dies_at = 2 * kSecond;
  spec.loaders[1].seen_after_ns = 10 * kSecond;  // later than all that it has sent would have come
  std::string text;
  const FleetResult result = simulate_fleet(spec, {.text = &text});
  CHECK(result.failure == "");
  CHECK(result.regranted > 0);
}

TEST_CASE("a loader that dies by chance and by order, and comes back twice, is there once") {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    FleetSpec spec = small(3, 0, 400);
    spec.faults.loader_mtbf_s = 1;
    spec.faults.restart_s = 0.5;
    spec.loaders[1].dies_at = 500 * kMillisecond;
    spec.loaders[1].seen_after_ns = kMillisecond;
    spec.loaders[1].comes_back_at = 700 * kMillisecond;
    spec.loaders[2].speed = SpeedProfile({{600 * kMillisecond, 0}, {2 * kSecond, kFullSpeed}});
    spec.balancer.lost_after_ns = 400 * kMillisecond;
    spec.heartbeat_ns = 100 * kMillisecond;
    spec.balancer.all_lost_ns = 60 * kSecond;
    run(spec, seed);  // Little's law and the number of batches are checked there
  }
}

TEST_CASE("trainers of one replica get the same samples, and an image counts once") {
  FleetSpec spec = small(4, 50 * kMillisecond, 60);
  spec.trainers.assign(4, {.node = 0, .step_ns = Distribution::constant(50 * kMillisecond)});
  spec.dataset_size = 12 * 2 * 60;
  spec.ranks_per_replica = 2;
  const FleetResult result = run(spec);
  CHECK(result.batches == 4 * 60);
  CHECK(result.images == 2 * 60 * 12);
  spec.ranks_per_replica = 3;
  CHECK_THROWS_WITH_AS((void)simulate_fleet(spec), doctest::Contains("ranks_per_replica"), Error);
}

TEST_CASE("GPUs take samples that they can begin sooner") {
  FleetSpec spec = small(1, 0, 100);
  spec.prefetch = 4;
  const double threads = run(spec).images_per_s;
  spec.loaders[0].gpus = 1;
  spec.loaders[0].gpu_sample_ns = kWork / 4;
  CHECK(run(spec).images_per_s == doctest::Approx(5 * threads).epsilon(0.05));
}

TEST_CASE("more loaders are never much slower, whatever the times") {
  const uint64_t seed = 9;
  MESSAGE("seed " << seed);
  SeededRandom random(seed);
  for (int round = 0; round < 30; ++round) {
    FleetSpec spec = small(1, random.below(40) * kMillisecond, 60);
    spec.samples.work_ns = Distribution::lognormal(static_cast<double>(random.between(1, 9)) * 1e6, 0.6);
    spec.prefetch = static_cast<int>(random.between(1, 4));
    double before = 0;
    for (int loaders = 1; loaders <= 4; ++loaders) {
      spec.loaders.resize(static_cast<size_t>(loaders), {.node = 0, .threads = 1});
      const double rate = run(spec, static_cast<uint64_t>(round)).images_per_s;
      CHECK(rate >= 0.98 * before);
      before = rate;
    }
  }
}

TEST_CASE("what describes no fleet is refused, by name") {
  FleetSpec spec = small(1, 0);
  spec.loaders[0].node = 3;
  CHECK_THROWS_WITH_AS((void)simulate_fleet(spec), doctest::Contains("loaders[0] is on node 3"), Error);
  spec = small(1, 0);
  spec.trainers.clear();
  CHECK_THROWS_WITH_AS((void)simulate_fleet(spec), doctest::Contains("no trainers"), Error);
}

}  // namespace
}  // namespace penstock
