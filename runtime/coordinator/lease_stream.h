// A lease stream as the coordinator knows it: the plan of an iteration, and how its batches are cut into chunks.
//
//   LeaseStream stream;                                    // its fields are set when the iteration begins
//   const BatchPlan& batch = stream.batch(step);           // which samples; made once for all chunks of the step
//   for (const int32_t row : stream.rows(lease, std::ssize(batch))) ... batch[row] ...
//   stream.chunk_bytes(id, step, sizes);                   // what the samples of each chunk weigh
//
// The cut is a pure function of plan and placement, so a chunk is the same for its life.
// Memory: batches of the steps that are being made; the owner forgets those that its client has taken. Thread-safety: none.
// Ownership: plan and placement are shared. Failure: as Plan::batch().
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "runtime/balancer/balancer.h"
#include "runtime/coordinator/sample_placement.h"
#include "runtime/protocol/messages.h"
#include "runtime/protocol/sample_sizes.h"
#include "sampler/plan.h"

namespace penstock {

struct LeaseStream {
  Fingerprint fingerprint = 0;
  PeerId receiver = 0;
  int32_t replica = 0;
  int64_t epoch = 0;
  int32_t chunk_samples = 1;
  int32_t gpu_reader = 0;
  std::shared_ptr<const Plan> plan;
  std::map<int64_t, BatchPlan> batches;  // of the steps that are being made
  int32_t of_replicas = 0;               // the plan is this replica's alone; 0: it is that of all
  // Set where loaders have some of the samples each. A lease stream keeps the placement that it began with, because
  // that is what its chunks were cut by.
  std::shared_ptr<const SamplePlacement> placement;
  std::map<int64_t, BatchCut> cuts;  // of the last steps that were asked for
  // When it began, some loaders did not have the split open as the others did. All of its chunks are of one group then,
  // kWhole, which a loader holds as soon as it has the split open.
  bool some_left_out = false;
  bool wait_named = false;  // for one of them, in a notice
  static constexpr int64_t kWhole = 0;

  // Made once for all chunks of a step; kept until the program has taken it.
  const BatchPlan& batch(int64_t step);
  // The group of each chunk of a step; none: every loader can read all.
  std::vector<int64_t> groups(int64_t step);
  // How a step is cut, where there is a placement.
  const BatchCut& cut(int64_t step);
  // The rows of a chunk of a batch of `length` samples.
  std::vector<int32_t> rows(const LeaseKey& lease, int64_t length);
  // Encoded, of a step's chunks; empty where the loaders know nothing of the samples' sizes, or not yet.
  std::vector<int64_t> chunk_bytes(LeaseStreamId id, int64_t step, const SampleSizes& sizes);
};

}  // namespace penstock
