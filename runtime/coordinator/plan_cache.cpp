#include "runtime/coordinator/plan_cache.h"

#include <algorithm>

#include "runtime/coordinator/epoch_plan.h"

namespace penstock {

PlanCache::Building& PlanCache::building(int64_t epoch) {
  const auto known = std::find_if(plans_.begin(), plans_.end(), [&](const auto& item) { return item.first == epoch; });
  if (known != plans_.end()) {
    plans_.splice(plans_.begin(), plans_, known);
    return plans_.front().second;
  }
  auto built = std::async(std::launch::async,
                          [split = split_, numbers = numbers_, size = dataset_size_, replicas = num_replicas_, epoch] {
                            return epoch_plan(split, *numbers, size, replicas, epoch);
                          });
  plans_.emplace_front(epoch, built.share());
  return plans_.front().second;
}

std::shared_ptr<const Plan> PlanCache::of(int64_t epoch) {
  const Building asked = building(epoch);
  std::shared_ptr<const Plan> plan;
  try {
    plan = asked.get();
  } catch (...) {
    plans_.remove_if([&](const auto& item) { return item.first == epoch; });
    throw;
  }
  const SamplerSpec& sampler = split_.split.sampler;
  if ((sampler.shuffle || !sampler.file().empty()) && split_.split.mode == Mode::train) {
    building(epoch + 1);
    building(epoch);  // asked for later than that one
  }
  if (plans_.size() > kKept) plans_.resize(kKept);
  return plan;
}

}  // namespace penstock
