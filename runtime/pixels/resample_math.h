// The integer arithmetic of Pillow's 8-bit resampling: what one output value is, given its taps.
//
// Source of the semantics: Pillow src/libImaging/Resample.c (ImagingResampleHorizontal_8bpc and its vertical twin).
// Coefficients are Q22 (32 - 8 - 2 bits), the sum starts at one half, is shifted arithmetically and clipped. Filters
// with negative lobes keep |sum| below 2^31 because the absolute coefficients of a pixel add up to less than 2.
// Thread-safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/base/host_device.h"

namespace penstock {

inline constexpr int kResamplePrecisionBits = 22;
inline constexpr int32_t kResampleHalf = 1 << (kResamplePrecisionBits - 1);  // what sums begin with

PENSTOCK_HOST_DEVICE inline uint8_t clip_q22(int32_t sum) {
  const int32_t v = sum >> kResamplePrecisionBits;
  return v < 0 ? uint8_t{0} : v > 255 ? uint8_t{255} : static_cast<uint8_t>(v);
}

// `pixel` is the first tap's byte; the next tap's byte lies `stride` further on (3 along a row of RGB, the row length
// down a column).
PENSTOCK_HOST_DEVICE inline uint8_t resample_value(const uint8_t* pixel, size_t stride, const int32_t* coefficients,
                                                   int taps) {
  int32_t sum = kResampleHalf;
  for (int k = 0; k < taps; ++k) sum += static_cast<int32_t>(pixel[static_cast<size_t>(k) * stride]) * coefficients[k];
  return clip_q22(sum);
}

}  // namespace penstock
