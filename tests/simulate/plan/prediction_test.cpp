// Several seeds, their agreement, the bounds beside them, and what a tenth more of each part brings.
#include "runtime/simulate/plan/prediction.h"

#include <doctest/doctest.h>

#include "runtime/simulate/plan/explanation.h"
#include "tests/simulate/plan/small_plan.h"

namespace penstock {
namespace {

TEST_CASE("an interval is Student's") {
  const Estimate one = estimate({1, 2, 3, 4});
  CHECK(one.mean == 2.5);
  CHECK(one.half_width == doctest::Approx(3.182 * 1.2909944 / 2));
  CHECK(estimate({5}).half_width == 0);
  CHECK(estimate({}).mean == 0);
}

TEST_CASE("the same seeds give the same prediction, whatever the threads") {
  const FleetSpec spec = fleet_of(small_plan({"nodes.cpu.count=1", "nodes.big.count=0"}));
  const Prediction one = predict(spec, {.seeds = 4, .threads = 1});
  const Prediction two = predict(spec, {.seeds = 4, .threads = 2});
  CHECK(one.log == two.log);
  CHECK(one.images_per_s.mean == two.images_per_s.mean);
  CHECK(one.log != predict(spec, {.seeds = 4, .first_seed = 9}).log);
  CHECK(one.images_per_s.mean <= one.naive.images_per_s * 1.02);
}

TEST_CASE("each part alone is a bound: threads, programs, NICs, storage, receivers") {
  FleetSpec spec = fleet_of(small_plan({"nodes.gpu.loaders=0", "nodes.cpu.count=1", "nodes.big.count=0"}));
  Bounds bounds = bounds_of(spec);
  CHECK(bounds.limit == "the training program");  // 8 trainers, 32 a step of 200 ms
  CHECK(bounds.images_per_s == doctest::Approx(1280));
  spec.loaders.resize(1);
  CHECK(bounds_of(spec).limit == "the loaders' threads");
  CHECK(bounds_of(spec).images_per_s == doctest::Approx(400).epsilon(0.01));
  spec.nodes[2].bytes_per_s = 15'052'800;
  CHECK(bounds_of(spec).limit == "the NICs of machines that load");
  CHECK(bounds_of(spec).images_per_s == doctest::Approx(100));
  spec.nodes[2].rack = 1;
  spec.racks = {{.bytes_per_s = 0}, {.bytes_per_s = 7'526'400}};
  CHECK(bounds_of(spec).limit == "the uplinks of racks that load");
  CHECK(bounds_of(spec).images_per_s == doctest::Approx(50));
  spec.racks.clear();
  spec.storage.reads_per_s = 50;
  CHECK(bounds_of(spec).limit == "the storage's reads");
}

TEST_CASE("what holds a job up brings most, and what does not brings nothing") {
  const FleetSpec threads = fleet_of(small_plan({"nodes.cpu.count=0", "nodes.big.count=0", "program.step_ms=20"}));
  const Explanation slow = explain(threads, {.seeds = 3});
  CHECK(slow.gains.front().what == "the loaders' threads, a tenth faster");
  CHECK(slow.gains.front().gain == doctest::Approx(0.1).epsilon(0.2));
  const FleetSpec program = fleet_of(small_plan({"nodes.cpu.count=8"}));
  const Explanation fast = explain(program, {.seeds = 3});
  CHECK(fast.gains.front().what == "the training program, a tenth faster");
  for (const Gain& gain : fast.gains) {
    if (gain.what != fast.gains.front().what) CHECK(gain.gain < 0.03);
  }
}

TEST_CASE("losses by chance cost throughput, and come from the seed") {
  FleetSpec spec = fleet_of(small_plan({"nodes.cpu.count=0", "nodes.big.count=0", "program.step_ms=20",
                                        "faults.loader_mtbf_h=0.0005", "faults.restart_s=2"}));
  const Prediction with = predict(spec, {.seeds = 3});
  spec.faults = {};
  const Prediction without = predict(spec, {.seeds = 3});
  CHECK(with.failure == "");
  CHECK(with.images_per_s.mean < 0.9 * without.images_per_s.mean);
  spec.faults.slow_share = 1;
  spec.faults.slow_speed = 0.5;
  CHECK(predict(spec, {.seeds = 3}).images_per_s.mean ==
        doctest::Approx(0.5 * without.images_per_s.mean).epsilon(0.03));
}

}  // namespace
}  // namespace penstock
