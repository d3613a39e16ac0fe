// The operations that the automatic augmentation policies choose from, with torchvision v2's magnitudes.
//
//   const double magnitude = magnitude_of(MagnitudeTable{}, PolicyOp::rotate, 9, 31, negated, size);
//   add_op(PolicyOp::rotate, magnitude, filter, fill, size, role, ops);
//
// Each does what torchvision's does on a PIL image. On a mask the geometric ones act (nearest), colour does not.
// Thread-safety: pure functions. Failure: none, but for memory.
#pragma once

#include <cstdint>

#include "runtime/transforms/transform.h"

namespace penstock {

// In the order of torchvision's tables; these numbers stand in records of draws.
enum class PolicyOp : uint8_t {
  identity = 0,
  shear_x = 1,
  shear_y = 2,
  translate_x = 3,
  translate_y = 4,
  rotate = 5,
  brightness = 6,
  color = 7,
  contrast = 8,
  sharpness = 9,
  posterize = 10,
  solarize = 11,
  auto_contrast = 12,
  equalize = 13,
  invert = 14,
};
constexpr int kPolicyOps = 15;

// How strong the operations are at the last bin; linear from nothing at the first.
struct MagnitudeTable {
  double shear = 0.3;
  double translate = 150.0 / 331.0;  // of the side, or in pixels
  bool translate_in_pixels = false;
  double rotate = 30;       // degrees
  double enhance = 0.9;     // brightness, color, contrast, sharpness: factors 1 +- this
  int posterize_from = 8;   // bits kept at the first bin
  int posterize_range = 4;  // bits fewer at the last bin
};

// The magnitude of `op` at a bin of `bins`: on an even grid, in float; negative where `negated` and the operation has a
// sign. torchvision takes torch.linspace, whose last bit depends on whether the CPU has fused multiply-add; here it is
// as if it had, on any.
double magnitude_of(const MagnitudeTable& table, PolicyOp op, int bin, int bins, bool negated, Size size);

bool has_sign(PolicyOp op);

// What it does to an image of size `in`, which it keeps; nothing, where that is nothing.
void add_op(PolicyOp op, double magnitude, Filter filter, const Fills& fill, Size in, ImageRole role, PixelOpSink& to);

}  // namespace penstock
