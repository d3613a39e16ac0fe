// The plans of a split's epochs: built once for all replicas, the next one ahead of time. A permutation of millions of
// samples takes a while, so a thread builds it, and nobody waits here.
//
//   PlanCache plans(split, numbers, dataset_size, num_replicas, background);
//   if (std::shared_ptr<const Plan> plan = plans.of(epoch)) ...    // null: it is being built; ask again when told
//
// A few are kept: those of the epochs that were asked for last. Small ones are built at once.
// Thread-safety: none. Ownership: plans are shared; `background` must outlive this. Failure: Error as epoch_plan.h says;
//   asking again builds anew.
#pragma once

#include <cstdint>
#include <future>
#include <list>
#include <memory>
#include <utility>

#include "runtime/coordinator/background_work.h"
#include "runtime/job/job.h"
#include "runtime/job/sampler_file.h"
#include "sampler/plan.h"

namespace penstock {

class PlanCache {
 public:
  PlanCache() = default;
  PlanCache(const ResolvedSplit& split, std::shared_ptr<const SamplerNumbers> numbers, int64_t dataset_size,
            int64_t num_replicas, BackgroundWork& background)
      : split_(split),
        numbers_(std::move(numbers)),
        dataset_size_(dataset_size),
        num_replicas_(num_replicas),
        background_(&background) {}

  bool ready() const { return numbers_ != nullptr; }  // not default-constructed
  std::shared_ptr<const Plan> of(int64_t epoch);

 private:
  using Building = std::shared_future<std::shared_ptr<const Plan>>;
  Building& building(int64_t epoch, BackgroundWork::Urgency urgency);
  int64_t numbers() const;  // that a plan is made of

  static constexpr size_t kKept = 3;
  static constexpr int64_t kAtOnce = 1 << 18;  // numbers: some milliseconds
  ResolvedSplit split_;
  std::shared_ptr<const SamplerNumbers> numbers_;
  int64_t dataset_size_ = 0;
  int64_t num_replicas_ = 1;
  BackgroundWork* background_ = nullptr;
  std::list<std::pair<int64_t, Building>> plans_;  // by epoch; the one asked for last is first
};

}  // namespace penstock
