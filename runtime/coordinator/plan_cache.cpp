#include "runtime/coordinator/plan_cache.h"

#include <algorithm>

#include "runtime/coordinator/epoch_plan.h"

namespace penstock {

int64_t PlanCache::numbers() const {
  return std::max(
      {dataset_size_, std::ssize(numbers_->indices), std::ssize(numbers_->weights), split_.split.sampler.num_samples});
}

PlanCache::Building& PlanCache::building(int64_t epoch, BackgroundWork::Urgency urgency) {
  const auto known = std::find_if(plans_.begin(), plans_.end(), [&](const auto& item) { return item.first == epoch; });
  if (known != plans_.end()) {
    plans_.splice(plans_.begin(), plans_, known);
    return plans_.front().second;
  }
  std::function<std::shared_ptr<const Plan>()> build = [split = split_, numbers = numbers_, size = dataset_size_,
                                                        replicas = num_replicas_, epoch] {
    return epoch_plan(split, *numbers, size, replicas, epoch);
  };
  if (numbers() <= kAtOnce) {
    std::packaged_task<std::shared_ptr<const Plan>()> now(std::move(build));
    plans_.emplace_front(epoch, now.get_future().share());
    now();
  } else {
    plans_.emplace_front(epoch, background_->run(std::move(build), urgency));
  }
  return plans_.front().second;
}

std::shared_ptr<const Plan> PlanCache::of(int64_t epoch) {
  const Building asked = building(epoch, BackgroundWork::Urgency::now);
  if (!is_ready(asked)) return nullptr;
  std::shared_ptr<const Plan> plan;
  try {
    plan = asked.get();
  } catch (...) {
    plans_.remove_if([&](const auto& item) { return item.first == epoch; });
    throw;
  }
  const SamplerSpec& sampler = split_.split.sampler;
  const bool differs = (sampler.shuffle || !sampler.file().empty()) && split_.split.mode == Mode::train;
  if (differs && numbers() > kAtOnce) {
    building(epoch + 1, BackgroundWork::Urgency::later);
    building(epoch, BackgroundWork::Urgency::now);  // asked for later than that one
  }
  if (plans_.size() > kKept) plans_.resize(kKept);
  return plan;
}

}  // namespace penstock
