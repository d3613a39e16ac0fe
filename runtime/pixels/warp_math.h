// The arithmetic of warps: what one output pixel is, given where it comes from. Equal to Pillow's, byte for byte.
//
//   SourcePoint p = map.at(x, y);
//   if (!sample_bilinear(view, p, out)) copy the fill;
//
// Source of the semantics: Pillow src/libImaging/Geometry.c (affine_transform, perspective_transform, the filters for
//   RGB). Doubles, each operation in Pillow's order; +, -, * and / alone, unfused (-ffp-contract=off, on a GPU
//   -fmad=false), so that host and GPU agree. A filter does not widen when it shrinks an image: this is
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

// A nearest affine map in Q16, as Pillow computes it: x' = a0 x + a1 y + a2, y' = a3 x + a4 y + a5.
struct FixedMap {
  int64_t a[6] = {};
};

// An image, interleaved or as three planes: where its rows, columns and channels lie. The functions below take either.
struct RgbPlane {
  const uint8_t* data = nullptr;
  size_t row_bytes = 0;
  int width = 0;
  int height = 0;

  PENSTOCK_HOST_DEVICE bool holds(SourcePoint p) const {
    return p.x >= 0.0 && p.x < width && p.y >= 0.0 && p.y < height;
  }
  PENSTOCK_HOST_DEVICE const uint8_t* row(int y) const { return data + static_cast<size_t>(y) * row_bytes; }
  PENSTOCK_HOST_DEVICE static size_t column(int x) { return static_cast<size_t>(x) * 3; }
  PENSTOCK_HOST_DEVICE static size_t channel(int c) { return static_cast<size_t>(c); }
};

struct PlanarImage {
  const uint8_t* data = nullptr;
  int width = 0;
  int height = 0;

  PENSTOCK_HOST_DEVICE bool holds(SourcePoint p) const {
    return p.x >= 0.0 && p.x < width && p.y >= 0.0 && p.y < height;
  }
  PENSTOCK_HOST_DEVICE const uint8_t* row(int y) const {
    return data + static_cast<size_t>(y) * static_cast<size_t>(width);
  }
  PENSTOCK_HOST_DEVICE static size_t column(int x) { return static_cast<size_t>(x); }
  PENSTOCK_HOST_DEVICE size_t channel(int c) const {
    return static_cast<size_t>(c) * static_cast<size_t>(width) * static_cast<size_t>(height);
  }
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

PENSTOCK_HOST_DEVICE inline double cubic_row(const uint8_t* row, const size_t* offsets, size_t channel, double d) {
  return cubic(row[offsets[0] + channel], row[offsets[1] + channel], row[offsets[2] + channel],
               row[offsets[3] + channel], d);
}

}  // namespace warp_detail

template <class Image>
PENSTOCK_HOST_DEVICE inline void copy_pixel_at(const Image& in, int x, int y, uint8_t* out) {
  const uint8_t* from = in.row(y) + in.column(x);
  out[0] = from[in.channel(0)];
  out[1] = from[in.channel(1)];
  out[2] = from[in.channel(2)];
}

// Each writes three bytes and says true, or says false outside the image.
template <class Image>
PENSTOCK_HOST_DEVICE inline bool sample_nearest(const Image& in, SourcePoint p, uint8_t* out) {
  if (!in.holds(p)) return false;
  copy_pixel_at(in, static_cast<int>(p.x), static_cast<int>(p.y), out);
  return true;
}

template <class Image>
PENSTOCK_HOST_DEVICE inline bool sample_fixed(const Image& in, const FixedMap& map, int x, int y, uint8_t* out) {
  const int64_t from_x = (map.a[0] * x + map.a[1] * y + map.a[2]) >> 16;
  const int64_t from_y = (map.a[3] * x + map.a[4] * y + map.a[5]) >> 16;
  if (from_x < 0 || from_x >= in.width || from_y < 0 || from_y >= in.height) return false;
  copy_pixel_at(in, static_cast<int>(from_x), static_cast<int>(from_y), out);
  return true;
}

template <class Image>
PENSTOCK_HOST_DEVICE inline bool sample_bilinear(const Image& in, SourcePoint p, uint8_t* out) {
  if (!in.holds(p)) return false;
  const double xin = p.x - 0.5;
  const double yin = p.y - 0.5;
  const int x = warp_detail::floor_index(xin);
  const int y = warp_detail::floor_index(yin);
  const double dx = xin - x;
  const double dy = yin - y;
  const uint8_t* upper = in.row(warp_detail::clamp_index(y, in.height));
  const uint8_t* lower = in.row(warp_detail::clamp_index(y + 1, in.height));
  const size_t left = in.column(warp_detail::clamp_index(x, in.width));
  const size_t right = in.column(warp_detail::clamp_index(x + 1, in.width));
  for (int c = 0; c < 3; ++c) {
    const size_t l = left + in.channel(c);
    const size_t r = right + in.channel(c);
    const double v1 = upper[l] + (upper[r] - upper[l]) * dx;
    const double v2 = lower[l] + (lower[r] - lower[l]) * dx;
    out[c] = static_cast<uint8_t>(v1 + (v2 - v1) * dy);
  }
  return true;
}

template <class Image>
PENSTOCK_HOST_DEVICE inline bool sample_bicubic(const Image& in, SourcePoint p, uint8_t* out) {
  if (!in.holds(p)) return false;
  const double xin = p.x - 0.5;
  const double yin = p.y - 0.5;
  const int x = warp_detail::floor_index(xin);
  const int y = warp_detail::floor_index(yin);
  const double dx = xin - x;
  const double dy = yin - y;
  size_t offsets[4];
  const uint8_t* rows[4];
  for (int i = 0; i < 4; ++i) {
    offsets[i] = in.column(warp_detail::clamp_index(x - 1 + i, in.width));
    rows[i] = in.row(warp_detail::clamp_index(y - 1 + i, in.height));
  }
  for (int c = 0; c < 3; ++c) {
    const size_t channel = in.channel(c);
    const double v = warp_detail::cubic(warp_detail::cubic_row(rows[0], offsets, channel, dx),
                                        warp_detail::cubic_row(rows[1], offsets, channel, dx),
                                        warp_detail::cubic_row(rows[2], offsets, channel, dx),
                                        warp_detail::cubic_row(rows[3], offsets, channel, dx), dy);
    out[c] = v <= 0.0 ? uint8_t{0} : v >= 255.0 ? uint8_t{255} : static_cast<uint8_t>(v);
  }
  return true;
}

}  // namespace penstock
