// Where things lie in a card's memory: at multiples of 256 bytes, where copies and kernels are fastest (it is also what
// cudaMalloc aligns to).
#pragma once

#include <cstddef>

namespace penstock {

inline constexpr size_t card_alignment = 256;

constexpr size_t card_aligned(size_t bytes) noexcept {
  return (bytes + card_alignment - 1) / card_alignment * card_alignment;
}

}  // namespace penstock
