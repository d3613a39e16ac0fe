// A table's own length and checksums made right, so that what they guard is reached (runtime/datasets/sample_table.h).
#pragma once

#include <cstring>
#include <vector>

#include "runtime/base/crc32c.h"
#include "runtime/base/hash.h"
#include "tests/fuzz/memory_disk.h"

namespace penstock {

// The first `length` bytes of the words are the table; one that is shorter than its header stays as it is.
inline void seal_table(std::vector<uint64_t>& words, size_t length) {
  if (length < 96) return;
  auto* bytes = reinterpret_cast<uint8_t*>(words.data());
  const uint64_t total = length;
  std::memcpy(bytes + 16, &total, 8);
  const Sum128 sum = hash128(bytes_of(bytes + 96, length - 96));
  std::memcpy(bytes + 64, &sum.low, 8);
  std::memcpy(bytes + 72, &sum.high, 8);
  std::memset(bytes + 12, 0, 4);
  const uint32_t crc = crc32c(bytes, 96);
  std::memcpy(bytes + 12, &crc, 4);
}

}  // namespace penstock
