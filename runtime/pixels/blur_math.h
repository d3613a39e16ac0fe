// The arithmetic of the Gaussian blur: one output value of a symmetric kernel, in float.
//
// Source of the semantics: torchvision's gaussian_blur: reflected borders (the edge pixel not repeated), weights and
//   sums in float, rounded half to even. torchvision convolves in two dimensions in whatever order its library likes;
//   here along the row, then down the column, each from the middle outwards, so that every host and GPU sums in one
//   order. The sums differ from torchvision's by some 1e-5, so a byte differs where a sum lies that close to a half: by
//   one, in a few of 100,000 bytes. Unfused: -ffp-contract=off, on a GPU -fmad=false. Thread-safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/base/host_device.h"

namespace penstock {

// Where index `i` of a mirrored axis of `size` lies; beyond one reflection it goes on, as torchvision's does not.
PENSTOCK_HOST_DEVICE inline int reflected(int i, int size) {
  if (i >= 0 && i < size) return i;
  if (size == 1) return 0;
  const int period = 2 * (size - 1);
  int rest = i % period;
  if (rest < 0) rest += period;
  return rest < size ? rest : period - rest;
}

// Adds two values at one distance of the middle.
PENSTOCK_HOST_DEVICE inline float blur_add(float sum, float weight, float before, float after) {
  const float both = before + after;
  const float product = weight * both;
  return sum + product;
}

// To the nearest integer, halves to even: adding 1.5 * 2^23 leaves no bit below one.
PENSTOCK_HOST_DEVICE inline uint8_t blur_round(float sum) {
  const float shifted = sum + 12582912.0F;
  const float rounded = shifted - 12582912.0F;
  return rounded <= 0.0F ? uint8_t{0} : rounded >= 255.0F ? uint8_t{255} : static_cast<uint8_t>(rounded);
}

}  // namespace penstock
