// What is known of a sample that was made, besides its fields: what was planned, what was delivered, why not, what was
// drawn. Loaders write it, chunks carry it, hashes cover it (protocol/chunk.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "runtime/base/hash.h"
#include "runtime/base/sample.h"

namespace penstock {

struct SampleRecord {
  PlannedSample planned;
  int64_t index = 0;     // delivered: planned.index, or its substitute's
  bool bad = false;      // no usable pixels: zeros were written
  bool padding = false;  // planned as not valid: an exact evaluation's repetition of a sample that stands elsewhere
  bool substituted = false;
  uint16_t attempts = 0;  // substitutes tried
  int32_t width = 0;      // of the source image
  int32_t height = 0;
  std::string key;         // relative path of the planned sample
  std::string substitute;  // of the one delivered in its place; empty otherwise
  std::string reason;      // why it (or the planned sample) is bad
  Draws draws;
  bool on_gpu = false;               // its image is in the chunk's buffer range
  std::optional<Sum128> pixel_hash;  // as StreamHash sums it; then the payload has nothing of the image
};

}  // namespace penstock
