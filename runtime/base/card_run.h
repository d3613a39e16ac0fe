// Bytes of the memory that a loader's card shares.
#pragma once

#include <cstdint>

namespace penstock {

struct CardRun {
  uint64_t at = 0;
  uint64_t bytes = 0;

  friend bool operator==(const CardRun&, const CardRun&) = default;
};

}  // namespace penstock
