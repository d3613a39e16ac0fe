// Bytes of the memory that a loader's card shares.
#pragma once

#include <cstdint>

namespace penstock {

struct CardRun {
  uint64_t at = 0;
  uint64_t bytes = 0;

  friend bool operator==(const CardRun&, const CardRun&) = default;
};

// Is all of it there? Whatever the numbers, which come from peers.
constexpr bool lies_within(const CardRun& run, uint64_t memory_bytes) noexcept {
  return run.at <= memory_bytes && run.bytes <= memory_bytes - run.at;
}

}  // namespace penstock
