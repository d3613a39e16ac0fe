// How many leases, chunk buffers and samples a chunk a job has where nobody says: what coordinator, loaders and the
// simulation of both agree on.
//
//   const int depth = lease_depth(threads);
//   const int32_t samples = chunk_samples_for(batch_size, receivers, threads_of_all_loaders, most);
//
// Thread-safety: pure functions. Failure: none.
#pragma once

#include <algorithm>
#include <cstdint>

namespace penstock {

// Leases a loader with this many threads wants at a time: enough samples for every thread while the next lease is on
// its way, at four samples a chunk, the fewest that the coordinator chooses.
constexpr int lease_depth(int threads) {
  return std::max(2, threads / 2 + 1);
}

// Beyond the leases being made: what is on its way to receivers, or waits for a receiver that is busy finishing.
constexpr int usual_chunk_buffers(int threads) {
  return std::max(16, 4 * lease_depth(threads));
}

// Several chunks for every thread of the job, so that no thread waits for another at a batch's end; but not so small
// that the messages cost more than they save. `most`: what a chunk buffer holds.
constexpr int32_t chunk_samples_for(int64_t batch_size, int64_t receivers, int64_t threads, int32_t most) {
  const int64_t chunks = std::max<int64_t>(1, 2 * threads / std::max<int64_t>(1, receivers));
  const int64_t samples = (batch_size + chunks - 1) / chunks;
  return static_cast<int32_t>(std::clamp<int64_t>(samples, std::min(4, most), most));
}

}  // namespace penstock
