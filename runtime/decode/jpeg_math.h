// The integer arithmetic from coefficients to RGB: libjpeg-turbo's default decode ("islow" inverse transform, "fancy"
// upsampling, YCbCr to RGB), one value or one block at a time.
//
// Source of the semantics: libjpeg-turbo 2.1.5, simd/x86_64/jidctint-avx2.asm, jdsample.c, jdcolor.c. The inverse
// transform is that of its x86 vector code, also on extreme coefficients, where it differs from its C code: the product
// with the quantiser, i0+-i4 and the sums before the odd part's rotation wrap to 16 bits; the first pass saturates to
// 16 bits, except that a block without AC coefficients wraps instead.
// Integers only, host and card compile the same.
#pragma once

#include <cstdint>

#include "runtime/base/host_device.h"

namespace penstock {

PENSTOCK_HOST_DEVICE inline int wrap16(int v) {
  return static_cast<int16_t>(static_cast<uint16_t>(static_cast<unsigned>(v)));
}

PENSTOCK_HOST_DEVICE inline int saturate16(int v) {
  return v < -32768 ? -32768 : v > 32767 ? 32767 : v;
}

PENSTOCK_HOST_DEVICE inline uint8_t clamp_byte(int v) {
  return v < 0 ? uint8_t{0} : v > 255 ? uint8_t{255} : static_cast<uint8_t>(v);
}

// One dimension: eight 16-bit values at `in`, `step` apart, to eight saturated ones. Sums run modulo 2^32.
PENSTOCK_HOST_DEVICE inline void idct_pass(const int16_t* in, int step, int down, int16_t* out) {
  const int i0 = in[0], i1 = in[step], i2 = in[2 * step], i3 = in[3 * step];
  const int i4 = in[4 * step], i5 = in[5 * step], i6 = in[6 * step], i7 = in[7 * step];
  using U = uint32_t;
  const auto times = [](int v, int k) { return static_cast<U>(v) * static_cast<U>(k); };
  const U t2 = times(i2, 4433) + times(i6, 4433 - 15137);
  const U t3 = times(i2, 4433 + 6270) + times(i6, 4433);
  const U t0 = times(wrap16(i0 + i4), 8192);
  const U t1 = times(wrap16(i0 - i4), 8192);
  const U e[4] = {t0 + t3, t1 + t2, t1 - t2, t0 - t3};
  const int s3 = wrap16(i7 + i3);
  const int s4 = wrap16(i5 + i1);
  const U z3 = times(s3, 9633 - 16069) + times(s4, 9633);
  const U z4 = times(s3, 9633) + times(s4, 9633 - 3196);
  const U o[4] = {times(i7, -7373) + times(i1, 12299 - 7373) + z4, times(i5, -20995) + times(i3, 25172 - 20995) + z3,
                  times(i5, 16819 - 20995) + times(i3, -20995) + z4, times(i7, 2446 - 7373) + times(i1, -7373) + z3};
  const U half = U{1} << (down - 1);
  for (int k = 0; k < 4; ++k) {
    out[k] = static_cast<int16_t>(saturate16(static_cast<int32_t>(e[k] + o[k] + half) >> down));
    out[7 - k] = static_cast<int16_t>(saturate16(static_cast<int32_t>(e[k] - o[k] + half) >> down));
  }
}

// A block of quantised coefficients in natural order to 8 x 8 samples.
PENSTOCK_HOST_DEVICE inline void idct_block(const int16_t* coefficients, const uint16_t* quant, uint8_t* out,
                                            long out_stride) {
  int16_t values[64];
  int16_t columns[64];  // transposed: column c at 8 * c
  bool only_first_row = true;
  for (int i = 0; i < 64; ++i) {
    values[i] = static_cast<int16_t>(wrap16(static_cast<int>(static_cast<unsigned>(coefficients[i]) * quant[i])));
    if (i >= 8 && coefficients[i] != 0) only_first_row = false;
  }
  for (int c = 0; c < 8; ++c) {
    if (only_first_row) {
      for (int r = 0; r < 8; ++r) columns[8 * c + r] = static_cast<int16_t>(wrap16(values[c] * 4));
    } else {
      idct_pass(values + c, 8, 11, columns + 8 * c);
    }
  }
  for (int r = 0; r < 8; ++r) {
    int16_t row[8];
    idct_pass(columns + r, 8, 18, row);
    for (int c = 0; c < 8; ++c) out[r * out_stride + c] = clamp_byte(row[c] + 128);
  }
}

// Upsampling by two. `near` and `far` are neighbouring samples; at the image's borders far is near itself.
// Along rows only (2x1): the left and the right output of a sample.
PENSTOCK_HOST_DEVICE inline uint8_t upsample_left(int near, int far) {
  return static_cast<uint8_t>((3 * near + far + 1) >> 2);
}
PENSTOCK_HOST_DEVICE inline uint8_t upsample_right(int near, int far) {
  return static_cast<uint8_t>((3 * near + far + 2) >> 2);
}
// Down columns only (1x2): the upper output has bias 1, the lower 2.
PENSTOCK_HOST_DEVICE inline uint8_t upsample_down(int near, int far, int bias) {
  return static_cast<uint8_t>((3 * near + far + bias) >> 2);
}
// Both (2x2): of the columns' sums 3 * near + far.
PENSTOCK_HOST_DEVICE inline uint8_t upsample_left_of_sums(int near, int far) {
  return static_cast<uint8_t>((3 * near + far + 8) >> 4);
}
PENSTOCK_HOST_DEVICE inline uint8_t upsample_right_of_sums(int near, int far) {
  return static_cast<uint8_t>((3 * near + far + 7) >> 4);
}

PENSTOCK_HOST_DEVICE inline void ycc_to_rgb(int y, int cb, int cr, uint8_t* rgb) {
  cb -= 128;
  cr -= 128;
  rgb[0] = clamp_byte(y + ((91881 * cr + 32768) >> 16));
  rgb[1] = clamp_byte(y + ((-22554 * cb - 46802 * cr + 32768) >> 16));
  rgb[2] = clamp_byte(y + ((116130 * cb + 32768) >> 16));
}

}  // namespace penstock
