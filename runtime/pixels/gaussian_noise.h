// The noise that GaussianNoise adds: a normal variate for each byte of an image, of Philox blocks, one a pixel.
//
//   const PhiloxBlock block = normal_block(seed, pixel);                                  // pixel = width * y + x
//   uint8_t noisy = noisy_byte(byte, normal_of(block.word[channel]), offset, spread, clip);
//
// Method: the inverse of the normal distribution by Wichura's algorithm AS 241 (1988), PPND7, within 1e-6 of it. Its
//   third branch, below probabilities of 1e-11, is left out: 32 bits do not get there. Only +, -, *, /, the square root
//   and draw_log, so the bits are the same on any CPU and GPU.
// Source of noisy_byte's semantics: torchvision v2's gaussian_noise on uint8, which computes in float, cuts off
//   fractions, and adds in integers. Thread-safety: pure functions, for host and GPU.
#pragma once

#include <cmath>
#include <cstdint>

#include "runtime/base/host_device.h"
#include "runtime/pixels/draw_math.h"
#include "runtime/pixels/philox.h"

namespace penstock {

// The counter's second word tells these blocks from those of RandomErasing (erase_noise.h).
PENSTOCK_HOST_DEVICE inline PhiloxBlock normal_block(uint64_t seed, uint32_t pixel) {
  return philox4x32_10({{pixel, 1, 0, 0}}, static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
}

// At most 6.4 from 0, where the distribution has one value in 4 thousand millions.
PENSTOCK_HOST_DEVICE inline float normal_of(uint32_t word) {
  const double p = (static_cast<double>(word) + 0.5) * 0x1p-32;
  const double q = p - 0.5;
  if (q >= -0.425 && q <= 0.425) {
    const double r = 0.180625 - q * q;
    const double above = ((59.109374720 * r + 159.29113202) * r + 50.434271938) * r + 3.3871327179;
    const double below = ((67.187563600 * r + 78.757757664) * r + 17.895169469) * r + 1.0;
    return static_cast<float>(q * above / below);
  }
  const double r = std::sqrt(-draw_log(q < 0 ? p : 1.0 - p)) - 1.6;
  const double above = ((0.17023821103 * r + 1.3067284816) * r + 2.7568153900) * r + 1.4234372777;
  const double below = (0.12021132975 * r + 0.73700164250) * r + 1.0;
  return static_cast<float>(q < 0 ? -(above / below) : above / below);
}

// `offset` and `spread` in bytes. Unclipped, the sum wraps around.
PENSTOCK_HOST_DEVICE inline uint8_t noisy_byte(uint8_t byte, float normal, float offset, float spread, bool clip) {
  const float scaled = normal * spread;
  const int sum = byte + static_cast<int>(offset + scaled);
  if (!clip) return static_cast<uint8_t>(sum & 255);
  return static_cast<uint8_t>(sum < 0 ? 0 : sum > 255 ? 255 : sum);
}

}  // namespace penstock
