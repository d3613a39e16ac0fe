// The arithmetic of warps: what one output pixel is, given where it comes from. Equal to Pillow's, byte for byte.
//
//   SourcePoint p = map.at(x, y);
//   if (!sample_bilinear(view, p, out)) copy the fill;
//
// Source of the semantics: Pillow src/libImaging/Geometry.c (affine_transform, perspective_transform, the filters for
//   RGB). Doubles, each operation in Pillow's order; +, -, * and / alone, unfused (-ffp-contract=off, on a card
//   -fmad=false), so that host and card agree. A filter does not widen when it shrinks an image: this is
//   Image.transform, not Image.resize. A coordinate that is not a number is outside.
// Thread-safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/base/host_device.h"

namespace penstock {

// A point of the source in pixels; (0.5, 0.5) is the middle of the first.
struct SourcePoint {
  double x = 0;
  double y = 0;
};

// Where output pixels come from: x' = (a0 x + a1 y + a2) / w, y' = (a3 x + a4 y + a5) / w at the pixel's middle, with
// w = 1 for an affine map and a6 x + a7 y + 1 for a perspective one.
struct WarpMap {
  double a[8] = {1, 0, 0, 0, 1, 0, 0, 0};
  bool perspective = false;

  PENSTOCK_HOST_DEVICE SourcePoint at(int x, int y) const {
    const double xin = x + 0.5;
    const double yin = y + 0.5;
    const double px = a[0] * xin + a[1] * yin + a[2];
    const double py = a[3] * xin + a[4] * yin + a[5];
    if (!perspective) return {px, py};
    const double w = a[6] * xin + a[7] * yin + 1;
    return {px / w, py / w};
  }
};

// The bytes of an image, as a plain struct that a card can take.
struct RgbPlane {
  const uint8_t* data = nullptr;
  size_t row_bytes = 0;
  int width = 0;
  int height = 0;

  PENSTOCK_HOST_DEVICE bool holds(SourcePoint p) const {
    return p.x >= 0.0 && p.x < width && p.y >= 0.0 && p.y < height;
  }
  PENSTOCK_HOST_DEVICE const uint8_t* row(int y) const { return data + static_cast<size_t>(y) * row_bytes; }
};

namespace warp_detail {

PENSTOCK_HOST_DEVICE inline int clamp_index(int i, int size) {
  return i < 0 ? 0 : i < size ? i : size - 1;
}

PENSTOCK_HOST_DEVICE inline int floor_index(double v) {
  const int i = static_cast<int>(v);  // towards zero
  return v < static_cast<double>(i) ? i - 1 : i;
}

PENSTOCK_HOST_DEVICE inline double cubic(double v1, double v2, double v3, double v4, double d) {
  const double p2 = -v1 + v3;
  const double p3 = 2 * (v1 - v2) + v3 - v4;
  const double p4 = -v1 + v2 - v3 + v4;
  return v2 + d * (p2 + d * (p3 + d * p4));
}

PENSTOCK_HOST_DEVICE inline double cubic_row(const uint8_t* row, const int* offsets, int channel, double d) {
  return cubic(row[offsets[0] + channel], row[offsets[1] + channel], row[offsets[2] + channel],
               row[offsets[3] + channel], d);
}

}  // namespace warp_detail

// Each writes three bytes and says true, or says false outside the image.
PENSTOCK_HOST_DEVICE inline bool sample_nearest(const RgbPlane& in, SourcePoint p, uint8_t* out) {
  if (!in.holds(p)) return false;
  const uint8_t* from = in.row(static_cast<int>(p.y)) + static_cast<size_t>(static_cast<int>(p.x)) * 3;
  out[0] = from[0];
  out[1] = from[1];
  out[2] = from[2];
  return true;
}

PENSTOCK_HOST_DEVICE inline bool sample_bilinear(const RgbPlane& in, SourcePoint p, uint8_t* out) {
  if (!in.holds(p)) return false;
  const double xin = p.x - 0.5;
  const double yin = p.y - 0.5;
  const int x = warp_detail::floor_index(xin);
  const int y = warp_detail::floor_index(yin);
  const double dx = xin - x;
  const double dy = yin - y;
  const uint8_t* upper = in.row(warp_detail::clamp_index(y, in.height));
  const uint8_t* lower = in.row(warp_detail::clamp_index(y + 1, in.height));
  const int left = warp_detail::clamp_index(x, in.width) * 3;
  const int right = warp_detail::clamp_index(x + 1, in.width) * 3;
  for (int c = 0; c < 3; ++c) {
    const double v1 = upper[left + c] + (upper[right + c] - upper[left + c]) * dx;
    const double v2 = lower[left + c] + (lower[right + c] - lower[left + c]) * dx;
    out[c] = static_cast<uint8_t>(v1 + (v2 - v1) * dy);
  }
  return true;
}

PENSTOCK_HOST_DEVICE inline bool sample_bicubic(const RgbPlane& in, SourcePoint p, uint8_t* out) {
  if (!in.holds(p)) return false;
  const double xin = p.x - 0.5;
  const double yin = p.y - 0.5;
  const int x = warp_detail::floor_index(xin);
  const int y = warp_detail::floor_index(yin);
  const double dx = xin - x;
  const double dy = yin - y;
  int offsets[4];
  const uint8_t* rows[4];
  for (int i = 0; i < 4; ++i) {
    offsets[i] = warp_detail::clamp_index(x - 1 + i, in.width) * 3;
    rows[i] = in.row(warp_detail::clamp_index(y - 1 + i, in.height));
  }
  for (int c = 0; c < 3; ++c) {
    const double v = warp_detail::cubic(
        warp_detail::cubic_row(rows[0], offsets, c, dx), warp_detail::cubic_row(rows[1], offsets, c, dx),
        warp_detail::cubic_row(rows[2], offsets, c, dx), warp_detail::cubic_row(rows[3], offsets, c, dx), dy);
    out[c] = v <= 0.0 ? uint8_t{0} : v >= 255.0 ? uint8_t{255} : static_cast<uint8_t>(v);
  }
  return true;
}

}  // namespace penstock
