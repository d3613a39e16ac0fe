// Plans are built once, the next one ahead, and are those that epoch_plan() gives.
#include "runtime/coordinator/plan_cache.h"

#include <doctest/doctest.h>

#include <atomic>
#include <future>
#include <thread>

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
  BackgroundWork background([] {});
  PlanCache plans(split, numbers, kSize, 1, background);
  for (const int64_t epoch : {0, 1, 5, 1}) {
    CAPTURE(epoch);
    CHECK(order(*plans.of(epoch)) == order(*epoch_plan(split, *numbers, kSize, 1, epoch)));
  }
}

TEST_CASE("each is built once while it is among the last ones") {
  BackgroundWork background([] {});
  PlanCache plans(shuffled_split(), std::make_shared<SamplerNumbers>(), kSize, 1, background);
  const auto first = plans.of(0);
  CHECK(plans.of(0) == first);
  const auto far = plans.of(7);  // another iteration, at another epoch
  CHECK(plans.of(0) == first);
  CHECK(plans.of(7) == far);
  CHECK(plans.of(0) == first);
  for (const int64_t epoch : {20, 30, 40}) plans.of(epoch);
  CHECK(plans.of(0) != first);
}

TEST_CASE("a large one is built by a thread, and nobody waits for it") {
  std::promise<void> hold;
  std::atomic<int> done{0};
  BackgroundWork background([&done] { ++done; });
  const auto held = background.run<int>([waits = hold.get_future().share()] { return waits.wait(), 1; });
  constexpr int64_t size = 1 << 20;
  PlanCache plans(shuffled_split(), std::make_shared<SamplerNumbers>(), size, 1, background);
  CHECK(plans.of(3) == nullptr);
  CHECK(plans.of(3) == nullptr);
  hold.set_value();
  std::shared_ptr<const Plan> plan;
  while ((plan = plans.of(3)) == nullptr) std::this_thread::yield();
  const auto expected = epoch_plan(shuffled_split(), SamplerNumbers{}, size, 1, 3);
  CHECK(plan->steps() == expected->steps());
  CHECK(plan->batch(17, 0)[0].index == expected->batch(17, 0)[0].index);
  while (done < 3) std::this_thread::yield();  // the next epoch's, ahead of time
  CHECK(plans.of(4) != nullptr);
  CHECK(held.get() == 1);
}

TEST_CASE("what fails once may succeed later") {
  BackgroundWork background([] {});
  PlanCache plans(shuffled_split(), std::make_shared<SamplerNumbers>(), 0, 1, background);
  CHECK_THROWS_AS(plans.of(0), Error);  // an empty dataset
  CHECK_THROWS_AS(plans.of(0), Error);
}

TEST_CASE("one without a split is not ready") {
  CHECK_FALSE(PlanCache().ready());
  BackgroundWork background([] {});
  CHECK(PlanCache(shuffled_split(), std::make_shared<SamplerNumbers>(), kSize, 1, background).ready());
}

}  // namespace
}  // namespace penstock
