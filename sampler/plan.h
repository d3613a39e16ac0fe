// The plan: which samples make up batch (epoch, step, replica) of a split, from the sampler alone.
//
//   PlanSpec spec{.dataset_size = 1281167, .num_replicas = 8, .batch_size = 64, .shuffle = true, .seed = 0};
//   PlanShape shape = plan_shape(spec);   // lengths and counts alone: no permutation, O(1)
//   Plan plan(spec, /*epoch=*/3);
//   plan.steps();                         // the same for every replica
//   BatchPlan batch = plan.batch(step, replica);
//   Plan given(spec, 3, GivenOrder::make(indices, samples_of_dataset, "order.npy"));   // spec.dataset_size: its size
//
// Random access: any batch can be asked for in any order, O(batch_size) each; building a Plan costs one permutation of
//   the dataset when it is shuffled (4 bytes a sample below 2^32 samples, else 8), which copies of the Plan share.
// Contract: order and padding are torch's DistributedSampler's (or RandomSampler's for one replica), index for index;
//   see README.md in this folder for what each tail gives. Position p of the global order goes to replica p mod R
//   (strided), so batch (step, replica) covers positions (step * batch_size + i) * R + replica.
// Failure: Error(config) where a combination cannot work (nothing left after dropping, exact evaluation with dropping),
//   naming the job's keys; Error(dataset) for an empty dataset; Error(usage) for a step, replica or epoch out of range.
// Thread-safety: immutable after construction. Ownership: copies share the permutation, or the GivenOrder.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/base/sample.h"
#include "sampler/given_order.h"
#include "sampler/permutation.h"

namespace penstock {

enum class Tail : uint8_t {
  torch = 0,  // per replica, by the two drop_last flags, as torch's DistributedSampler and BatchSampler do
  pad = 1,    // the global order is padded to a multiple of the global batch before striding
  drop = 2,   // the global order is cut to a multiple of the global batch before striding
};

enum class Mode : uint8_t { train = 0, eval = 1 };

constexpr const char* name_of(Tail tail) {
  return tail == Tail::torch ? "torch" : tail == Tail::pad ? "pad" : "drop";
}
constexpr const char* name_of(Mode mode) {
  return mode == Mode::train ? "train" : "eval";
}

struct PlanSpec {
  int64_t dataset_size = 0;  // samples in the epoch's order: of the dataset, or of a GivenOrder
  int64_t num_replicas = 1;
  int64_t batch_size = 1;  // per replica
  bool shuffle = false;
  uint64_t seed = 0;
  Tail tail = Tail::torch;
  bool sampler_drop_last = false;  // DistributedSampler's (sampler.drop_last), with tail torch
  bool batch_drop_last = false;    // BatchSampler's (drop_last), with tail torch
  Mode mode = Mode::train;         // eval: padding carries valid = false

  int64_t global_batch() const noexcept { return batch_size * num_replicas; }
  friend bool operator==(const PlanSpec&, const PlanSpec&) = default;
};

// How long an epoch is: the same for every epoch and replica.
struct PlanShape {
  int64_t steps = 0;                // batches per replica, at least 1
  int64_t samples_per_replica = 0;  // delivered to each: padding included, dropped ones not
  int64_t samples = 0;              // of all replicas: samples_per_replica * num_replicas
  int64_t padding = 0;              // how many of `samples` repeat an earlier one
  int64_t dropped = 0;              // how many of the dataset are not delivered in an epoch

  friend bool operator==(const PlanShape&, const PlanShape&) = default;
};

// Checks the spec and counts; everything that a Plan refuses is refused here.
PlanShape plan_shape(const PlanSpec& spec);

// How many of a replica's samples in one epoch are valid: all in `train`, those that are not padding in `eval`.
int64_t valid_samples(const PlanSpec& spec, int64_t replica);

using BatchPlan = std::vector<PlannedSample>;

class Plan {
 public:
  Plan(const PlanSpec& spec, int64_t epoch);
  // The order as it is given: whoever gives it has shuffled it for this epoch, where spec.shuffle says so.
  Plan(const PlanSpec& spec, int64_t epoch, std::shared_ptr<const GivenOrder> order);

  const PlanSpec& spec() const noexcept { return spec_; }
  const PlanShape& shape() const noexcept { return shape_; }
  int64_t epoch() const noexcept { return epoch_; }
  int64_t steps() const noexcept { return shape_.steps; }  // batches per replica
  int64_t batch_length(int64_t step) const;                // samples in batch `step`, on every replica
  int64_t samples_per_replica() const noexcept { return shape_.samples_per_replica; }  // padding included
  BatchPlan batch(int64_t step, int64_t replica) const;
  PlannedSample at(int64_t position) const;  // of the global order, below shape().samples

 private:
  PlanSpec spec_;
  PlanShape shape_;
  int64_t epoch_ = 0;
  Permutation order_;
  std::shared_ptr<const GivenOrder> given_;  // empty: order_ holds the samples themselves
};

}  // namespace penstock
