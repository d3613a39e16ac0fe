// Files that a split's sampler names: indices (the order of an epoch) or weights (what an epoch is drawn by).
//
//   ResolvedSplit split = with_sampler_file(resolve_split(job, "train"));   // reads the file, notes its hash and count
//   SamplerNumbers numbers = read_sampler_file(split);                      // the numbers; checked against that hash
//
// Where it is read: by each client, when it opens the split, so that the hash is part of the split's canonical form and
//   two trainers that see different files are told so; and by the coordinator, which alone needs the numbers. Receivers
//   and loaders never open it: the size of an epoch follows from the canonical form.
// Formats: .npy, one-dimensional, little-endian: int64 or int32 for indices, also float64 or float32 for weights; any
//   other name: text, one number a line, empty lines left out.
// Hash: of the numbers as int64 or float64, so the same numbers in another format or folder are the same order.
// Failure: Error(dataset) naming file, position and value; Error(config) where the hash is another than was noted.
// The file is untrusted: its size is bounded before memory is taken, its header is parsed and not evaluated.
// Thread-safety: pure but for the file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/job/job.h"

namespace penstock {

inline constexpr int64_t kMaxSamplerFileBytes = int64_t{8} << 30;

struct SamplerNumbers {
  std::vector<int64_t> indices;  // one of the two is filled
  std::vector<double> weights;
  int64_t smallest = 0;  // of the indices
  int64_t largest = 0;
};

// The split as it is where its sampler names no file.
ResolvedSplit with_sampler_file(ResolvedSplit split, FileSystem& files = posix_file_system());

// Empty where the sampler names no file.
SamplerNumbers read_sampler_file(const ResolvedSplit& split, FileSystem& files = posix_file_system());

}  // namespace penstock
