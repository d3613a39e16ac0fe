// The plans of a split's epochs: built once for all replicas, the next one ahead of time by a thread of its own,
// because a permutation of millions of samples takes a while.
//
//   PlanCache plans(split, numbers, dataset_size, num_replicas);
//   std::shared_ptr<const Plan> plan = plans.of(epoch);     // waits where it is still being built
//
// A few are kept: those of the epochs that were asked for last.
// Thread-safety: none. Ownership: plans are shared. Failure: Error as epoch_plan.h says; asking again builds anew.
#pragma once

#include <cstdint>
#include <future>
#include <list>
#include <memory>
#include <utility>

#include "runtime/job/job.h"
#include "runtime/job/sampler_file.h"
#include "sampler/plan.h"

namespace penstock {

class PlanCache {
 public:
  PlanCache() = default;
  PlanCache(const ResolvedSplit& split, std::shared_ptr<const SamplerNumbers> numbers, int64_t dataset_size,
            int64_t num_replicas)
      : split_(split), numbers_(std::move(numbers)), dataset_size_(dataset_size), num_replicas_(num_replicas) {}

  bool ready() const { return numbers_ != nullptr; }  // not default-constructed
  std::shared_ptr<const Plan> of(int64_t epoch);

 private:
  using Building = std::shared_future<std::shared_ptr<const Plan>>;
  Building& building(int64_t epoch);

  static constexpr size_t kKept = 3;
  ResolvedSplit split_;
  std::shared_ptr<const SamplerNumbers> numbers_;
  int64_t dataset_size_ = 0;
  int64_t num_replicas_ = 1;
  std::list<std::pair<int64_t, Building>> plans_;  // by epoch; the one asked for last is first
};

}  // namespace penstock
