// The integer arithmetic from coefficients to RGB: libjpeg-turbo's default decode ("islow" inverse transform, "fancy"
// upsampling, YCbCr to RGB), one value or one block at a time.
//
// Source of the semantics: libjpeg-turbo 2.1.5, simd/x86_64/jidctint-avx2.asm, jdsample.c, jdcolor.c. The inverse
// transform is that of its x86 vector code, also on extreme coefficients, where it differs from its C code: the product
// with the quantiser, i0+-i4 and the sums before the odd part's rotation wrap to 16 bits; the first pass saturates to
// 16 bits, except that a block without AC coefficients wraps instead.
// The reduced transforms, which make 4 x 4, 2 x 2 or 1 x 1 samples of a block, are those of its jidctred-sse2.asm and,
// for one sample, jidctred.c: the first pass as above, but the values that become the 2 x 2 block's even part keep 32
// bits; the single sample wraps at 10 bits before it is clamped.
// Integers only, host and GPU compile the same. Thread-safety: pure functions.
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

// One dimension of the transform to four samples: of eight 16-bit values, `step` apart, the fifth counts for nothing.
PENSTOCK_HOST_DEVICE inline void idct_pass_to_4(const int16_t* in, int step, int down, int16_t* out) {
  using U = uint32_t;
  const auto times = [&](int at, int k) { return static_cast<U>(int{in[at * step]}) * static_cast<U>(k); };
  const U even = times(0, 1 << 14);
  const U turned = times(2, 15137) + times(6, -6270);
  const U odd0 = times(1, 20995) + times(3, 7373) + times(5, -4926) + times(7, -4176);
  const U odd1 = times(1, 8697) + times(3, -17799) + times(5, 11893) + times(7, -1730);
  const U half = U{1} << (down - 1);
  const U sums[4] = {even + turned + odd0, even - turned + odd1, even - turned - odd1, even + turned - odd0};
  for (int k = 0; k < 4; ++k) {
    out[k] = static_cast<int16_t>(saturate16(static_cast<int32_t>(sums[k] + half) >> down));
  }
}

// A block of quantised coefficients in natural order to 4 x 4 samples.
PENSTOCK_HOST_DEVICE inline void idct_block_4x4(const int16_t* coefficients, const uint16_t* quant, uint8_t* out,
                                                long out_stride) {
  int16_t values[64];
  int16_t columns[32];  // transposed: column c at 4 * c
  bool only_first_row = true;
  for (int i = 0; i < 64; ++i) {
    values[i] = static_cast<int16_t>(wrap16(static_cast<int>(static_cast<unsigned>(coefficients[i]) * quant[i])));
    if (i >= 8 && i / 8 != 4 && coefficients[i] != 0) only_first_row = false;
  }
  for (int c = 0; c < 8; ++c) {
    if (only_first_row) {
      for (int r = 0; r < 4; ++r) columns[4 * c + r] = static_cast<int16_t>(wrap16(values[c] * 4));
    } else {
      idct_pass_to_4(values + c, 8, 12, columns + 4 * c);
    }
  }
  for (int r = 0; r < 4; ++r) {
    int16_t row[4];
    idct_pass_to_4(columns + r, 4, 19, row);
    for (int c = 0; c < 4; ++c) out[r * out_stride + c] = clamp_byte(row[c] + 128);
  }
}

// To 2 x 2 samples: of the first and the odd rows and columns.
PENSTOCK_HOST_DEVICE inline void idct_block_2x2(const int16_t* coefficients, const uint16_t* quant, uint8_t* out,
                                                long out_stride) {
  using U = uint32_t;
  const auto odd_part = [](int i1, int i3, int i5, int i7) {
    return static_cast<U>(i1) * 29692U - static_cast<U>(i3) * 10426U + static_cast<U>(i5) * 6967U -
           static_cast<U>(i7) * 5906U;
  };
  int upper[8];  // by column
  int lower[8];
  for (int c = 0; c < 8; ++c) {
    if (c == 2 || c == 4 || c == 6) continue;
    const auto value = [&](int r) {
      return wrap16(static_cast<int>(static_cast<unsigned>(coefficients[8 * r + c]) * quant[8 * r + c]));
    };
    const U even = static_cast<U>(value(0)) << 15;
    const U odd = odd_part(value(1), value(3), value(5), value(7));
    upper[c] = static_cast<int32_t>(even + odd + (U{1} << 12)) >> 13;
    lower[c] = static_cast<int32_t>(even - odd + (U{1} << 12)) >> 13;
  }
  for (int r = 0; r < 2; ++r) {
    const int* const row = r == 0 ? upper : lower;
    const U even = static_cast<U>(row[0]) << 15;
    const U odd = odd_part(saturate16(row[1]), saturate16(row[3]), saturate16(row[5]), saturate16(row[7]));
    out[r * out_stride] = clamp_byte((static_cast<int32_t>(even + odd + (U{1} << 19)) >> 20) + 128);
    out[r * out_stride + 1] = clamp_byte((static_cast<int32_t>(even - odd + (U{1} << 19)) >> 20) + 128);
  }
}

// To one sample: the block's mean.
PENSTOCK_HOST_DEVICE inline uint8_t idct_block_1x1(int16_t dc, uint16_t quant) {
  const int mean = (int{dc} * static_cast<int16_t>(quant) + 4) >> 3;
  return clamp_byte((((mean + 512) & 1023) - 512) + 128);
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
