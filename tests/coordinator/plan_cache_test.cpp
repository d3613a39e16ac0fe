// Plans are built once, the next one ahead, and are those that epoch_plan() gives.
#include "runtime/coordinator/plan_cache.h"

#include <doctest/doctest.h>

#include "runtime/base/error.h"
#include "runtime/coordinator/epoch_plan.h"

namespace penstock {
namespace {

constexpr int64_t kSize = 10;

ResolvedSplit shuffled_split() {
  ResolvedSplit split;
  split.name = "train";
  split.split.mode = Mode::train;
  split.split.batch_size = 4;
  split.split.sampler.shuffle = true;
  return split;
}

std::vector<int64_t> order(const Plan& plan) {
  std::vector<int64_t> indices;
  for (int64_t step = 0; step < plan.steps(); ++step) {
    for (const auto& row_index : plan.batch(step, 0)) indices.push_back(row_index.index);
  }
  return indices;
}

TEST_CASE("plans are those of epoch_plan()") {
  const ResolvedSplit split = shuffled_split();
  const auto numbers = std::make_shared<SamplerNumbers>();
  PlanCache plans(split, numbers, kSize, 1);
  for (const int64_t epoch : {0, 1, 5, 1}) {
    CAPTURE(epoch);
    CHECK(order(*plans.of(epoch)) == order(*epoch_plan(split, *numbers, kSize, 1, epoch)));
  }
}

TEST_CASE("each is built once while it is among the last ones") {
  PlanCache plans(shuffled_split(), std::make_shared<SamplerNumbers>(), kSize, 1);
  const auto first = plans.of(0);
  CHECK(plans.of(0) == first);
  const auto far = plans.of(7);  // another iteration, at another epoch
  CHECK(plans.of(0) == first);
  CHECK(plans.of(7) == far);
  CHECK(plans.of(0) == first);
  plans.of(20);
  plans.of(30);
  CHECK(plans.of(0) != first);
}

TEST_CASE("what fails once may succeed later") {
  PlanCache plans(shuffled_split(), std::make_shared<SamplerNumbers>(), 0, 1);
  CHECK_THROWS_AS(plans.of(0), Error);  // an empty dataset
  CHECK_THROWS_AS(plans.of(0), Error);
}

TEST_CASE("one without a split is not ready") {
  CHECK_FALSE(PlanCache().ready());
  CHECK(PlanCache(shuffled_split(), std::make_shared<SamplerNumbers>(), kSize, 1).ready());
}

}  // namespace
}  // namespace penstock
