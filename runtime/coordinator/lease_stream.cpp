#include "runtime/coordinator/lease_stream.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "runtime/coordinator/epoch_plan.h"

namespace penstock {

const BatchPlan& LeaseStream::batch(int64_t step) {
  const auto known = batches.find(step);
  if (known != batches.end()) return known->second;
  const bool own = of_replicas > 0;
  BatchPlan made = plan->batch(step, own ? 0 : replica);
  if (own) globalize(made, replica, of_replicas);
  return batches.emplace(step, std::move(made)).first->second;
}

std::vector<int64_t> LeaseStream::chunk_bytes(LeaseStreamId id, int64_t step, const SampleSizes& sizes) {
  if (sizes.empty() || step < 0 || step >= plan->steps()) return {};
  const BatchPlan& samples = batch(step);
  const int32_t chunks = placement ? static_cast<int32_t>(cut(step).groups.size())
                                   : static_cast<int32_t>((std::ssize(samples) + chunk_samples - 1) / chunk_samples);
  std::vector<int64_t> bytes(static_cast<size_t>(chunks), 0);
  for (int32_t chunk = 0; chunk < chunks; ++chunk) {
    for (const int32_t row : rows({id, step, chunk, 0}, std::ssize(samples))) {
      bytes[static_cast<size_t>(chunk)] += sizes.bytes_of(samples[static_cast<size_t>(row)].index);
    }
  }
  return bytes;
}

std::vector<int64_t> LeaseStream::groups(int64_t step) {
  if (placement) return cut(step).groups;
  if (!some_left_out || step < 0 || step >= plan->steps()) return {};
  const int64_t chunks = (plan->batch_length(step) + chunk_samples - 1) / chunk_samples;
  return std::vector<int64_t>(static_cast<size_t>(chunks), kWhole);
}

const BatchCut& LeaseStream::cut(int64_t step) {
  constexpr size_t kept = 16;
  const auto known = cuts.find(step);
  if (known != cuts.end()) return known->second;
  if (cuts.size() >= kept) cuts.erase(cuts.begin());
  return cuts[step] = cut_batch(batch(step), *placement, chunk_samples);
}

std::vector<int32_t> LeaseStream::rows(const LeaseKey& lease, int64_t length) {
  std::vector<int32_t> out;
  if (placement) {
    const auto its = cut(lease.step).rows_of(lease.chunk);
    out.assign(its.begin(), its.end());
  } else {
    const int64_t first = int64_t{lease.chunk} * chunk_samples;
    for (int64_t row = first; row < std::min(length, first + chunk_samples); ++row) {
      out.push_back(static_cast<int32_t>(row));
    }
  }
  return out;
}

}  // namespace penstock
