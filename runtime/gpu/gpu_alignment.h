// Where things lie in a GPU's memory: at multiples of 256 bytes, where copies and kernels are fastest (it is also what
// cudaMalloc aligns to).
#pragma once

#include <cstddef>

namespace penstock {

inline constexpr size_t kGpuAlignment = 256;

constexpr size_t gpu_aligned(size_t bytes) noexcept {
  return (bytes + kGpuAlignment - 1) / kGpuAlignment * kGpuAlignment;
}

}  // namespace penstock
