// Bytes of the memory that a loader's GPU exports.
#pragma once

#include <cstdint>

namespace penstock {

struct MemoryRange {
  uint64_t at = 0;
  uint64_t bytes = 0;

  friend bool operator==(const MemoryRange&, const MemoryRange&) = default;
};

// Is all of it there? Whatever the numbers, which come from peers.
constexpr bool lies_within(const MemoryRange& run, uint64_t memory_bytes) noexcept {
  return run.at <= memory_bytes && run.bytes <= memory_bytes - run.at;
}

}  // namespace penstock
