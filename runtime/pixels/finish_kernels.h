// The finishing pass's vector loops; finish.cpp decides which of them is exact and may run.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/base/fields.h"

namespace penstock {

// y = (x * factor - mean) / std, each operation rounded on its own; then the cast to dtype.
struct FinishChannel {
  float factor = 1;
  float mean = 0;
  float std = 1;
  const uint32_t* table = nullptr;  // 256 results as bit patterns, for the elements beside whole vectors
};

// One plane: count elements of dtype float32, float16 or bfloat16. `reciprocal`: divisions by reciprocal and FMA.
void finish_plane(DType dtype, bool reciprocal, const FinishChannel& channel, const uint8_t* source, size_t count,
                  void* destination);
// Three planes of count elements each, interleaved; uint8 as well, without arithmetic.
void finish_interleaved(DType dtype, bool reciprocal, const FinishChannel channels[3], const uint8_t* const planes[3],
                        size_t count, void* destination);
void copy_streaming(const uint8_t* source, size_t count, uint8_t* destination);

}  // namespace penstock
