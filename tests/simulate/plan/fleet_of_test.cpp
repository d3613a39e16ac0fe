// From job, cluster and profile to the fleet that is simulated.
#include "runtime/simulate/plan/fleet_of.h"

#include <doctest/doctest.h>

#include "runtime/base/error.h"
#include "runtime/simulate/fleet/sample_costs.h"
#include "tests/simulate/plan/small_plan.h"

namespace penstock {
namespace {

TEST_CASE("machines that train come first, loaders are as many as the cores have room for") {
  const FleetSpec spec = fleet_of(small_plan());
  CHECK(spec.nodes.size() == 12);
  CHECK(spec.trainers.size() == 8);
  CHECK(spec.trainers[7].node == 1);
  // Two of four threads on each machine that trains; 16 on each of two big ones, 4 on each of eight small ones.
  CHECK(spec.loaders.size() == 2 * 2 + 2 * 16 + 8 * 4);
  CHECK(spec.loaders[0].node == 0);
  CHECK(spec.loaders[4].node == 2);
  CHECK(spec.loaders[0].threads == 4);
  CHECK(spec.nodes[0].bytes_per_s == doctest::Approx(50e9 / 8 * 1448 / 1514));
  CHECK(spec.samples.work_ns.mean() == doctest::Approx(10e6).epsilon(0.01));
  CHECK(spec.batch_size == 32);
  CHECK(spec.steps == 40);
}

TEST_CASE("a sample's time follows its size as far as the profile says, and is as long and as varied as it measured") {
  PlanInput input = small_plan();
  Histogram& times = input.profile.sample_ns = {};
  Histogram& sizes = input.profile.sample_bytes = {};
  for (int64_t i = 0; i < 1000; ++i) {
    sizes.add(50'000 + 100 * i);
    times.add(40 * (50'000 + 100 * i) + (i * 7919 % 1000) * 3'000);
  }
  input.profile.ns_per_byte = 40;
  const FleetSpec spec = fleet_of(input);
  const SampleCosts costs(spec.samples, 1);
  Histogram made;
  double together = 0, bytes = 0;
  for (int64_t i = 0; i < 20'000; ++i) {
    const auto ns = static_cast<double>(costs.work_ns(i, i));
    made.add(static_cast<int64_t>(ns));
    bytes += static_cast<double>(costs.bytes(i));
    together += ns * static_cast<double>(costs.bytes(i));
  }
  CHECK(made.mean() == doctest::Approx(times.mean()).epsilon(0.01));
  CHECK(made.variance() == doctest::Approx(times.variance()).epsilon(0.05));
  const double covariance = together / 20'000 - made.mean() * bytes / 20'000;
  CHECK(covariance / sizes.variance() == doctest::Approx(40).epsilon(0.05));
}

TEST_CASE("the data set's own sizes are taken where they are known, and are as many as it has samples") {
  PlanInput input = small_plan();
  input.samples = 0;
  input.sizes = std::make_shared<const std::vector<int64_t>>(5000, 123'456);
  const FleetSpec spec = fleet_of(input);
  CHECK(spec.dataset_size == 5000);
  CHECK(SampleCosts(spec.samples, 1).bytes(4999) == 123'456);
  input.samples = 6000;  // another data set than the index is of
  CHECK(fleet_of(input).dataset_size == 6000);
  CHECK(!fleet_of(input).samples.known_bytes);
}

TEST_CASE("what was entered by hand is named") {
  CHECK(entered_by_hand(small_plan({"nodes.cpu.gpus=1", "nodes.cpu.gpu_images_per_s=2000", "nodes.big.speed=0.5"})) ==
        std::vector<std::string>{"nodes.big.speed", "nodes.cpu.gpu_images_per_s", "program.step_ms"});
}

TEST_CASE("what training takes of a NIC is not there for loading, and a speed is of the threads") {
  const FleetSpec spec =
      fleet_of(small_plan({"nodes.gpu.network_for_training=0.5", "nodes.cpu.speed=0.5", "nodes.gpu.loaders=0"}));
  CHECK(spec.nodes[0].bytes_per_s == doctest::Approx(25e9 / 8 * 1448 / 1514));
  CHECK(spec.loaders.back().speed.at(0) == kFullSpeed / 2);
  CHECK(spec.loaders.size() == 2 * 16 + 8 * 4);
}

TEST_CASE("a machine's GPUs go round its loaders") {
  const FleetSpec spec = fleet_of(
      small_plan({"nodes.cpu.gpus=5", "nodes.cpu.gpu_images_per_s=2000", "nodes.cpu.count=1", "nodes.big.count=0"}));
  const size_t first = spec.loaders.size() - 4;
  CHECK(spec.loaders[first].gpus == 2);
  CHECK(spec.loaders[first + 1].gpus == 1);
  CHECK(spec.loaders[first].gpu_sample_ns == 500'000);
  CHECK(spec.loaders[first].executor_class == 1);
  CHECK(spec.loaders[0].executor_class == 0);
}

TEST_CASE("what happens to loaders and machines is written in few words") {
  const WhatIf slow = parse_what_if("slow:2@10+5x0.4");
  CHECK(slow.which == 2);
  CHECK(slow.at_s == 10);
  CHECK(slow.lasts_s == 5);
  CHECK(slow.factor == 0.4);
  const FleetSpec spec = fleet_of(small_plan(), {slow, parse_what_if("kill:1@3+4"), parse_what_if("node:2@6"),
                                                 parse_what_if("nic:0x0.5"), parse_what_if("tail:x3")});
  CHECK(spec.loaders[2].speed.at(9 * kSecond) == kFullSpeed);
  CHECK(spec.loaders[2].speed.at(12 * kSecond) == kFullSpeed * 4 / 10);
  CHECK(spec.loaders[2].speed.at(15 * kSecond) == kFullSpeed);
  CHECK(spec.loaders[1].dies_at == 3 * kSecond);
  CHECK(spec.loaders[1].comes_back_at == 7 * kSecond);
  CHECK(spec.loaders[4].dies_at == 6 * kSecond);  // machine 2's first
  CHECK(!spec.loaders[4].seen_after_ns);          // by its silence alone
  CHECK(spec.nodes[0].bytes_per_s == doctest::Approx(25e9 / 8 * 1448 / 1514));
  CHECK(spec.samples.noise.quantile(0.5) == 1'000'000);
  CHECK(spec.samples.noise.quantile(0.999) == 3'000'000);
  for (const char* bad : {"slow:2", "slow:x0.5", "kill:1x2", "stop", "boom:1@2", "slow:1x0", "kill:-1@3", "kill:1@x",
                          "tail:3", "stop:1@3+", "nic:1@10x0.5", "tail:+3x2", "kill:1@1e300", "kill:1@inf"}) {
    CHECK_THROWS_AS((void)parse_what_if(bad), Error);
  }
  CHECK_THROWS_WITH_AS((void)fleet_of(small_plan(), {parse_what_if("kill:999@1")}),
                       doctest::Contains("there are loaders 0 to 67"), Error);
}

TEST_CASE("a job that cannot run on a cluster says why") {
  CHECK_THROWS_WITH_AS((void)fleet_of(small_plan({"nodes.gpu.loaders=0", "nodes.cpu.count=0", "nodes.big.count=0"})),
                       doctest::Contains("cannot run on this cluster: it has no loader"), Error);
  CHECK_THROWS_WITH_AS((void)fleet_of(small_plan({"program.step_ms=0"})),
                       doctest::Contains("how long the program takes"), Error);
  PlanInput input = small_plan();
  input.split = "val";
  CHECK_THROWS_WITH_AS((void)fleet_of(input), doctest::Contains("no split 'val'"), Error);
  input = small_plan();
  input.samples = 100;
  CHECK_THROWS_WITH_AS((void)fleet_of(input), doctest::Contains("a step of all trainers takes 256"), Error);
}

}  // namespace
}  // namespace penstock
