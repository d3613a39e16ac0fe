// Rotations, affine and perspective warps of whole images: Pillow's Image.rotate and Image.transform, byte for byte.
//
//   Rotation rotation = rotation_of(30.0, size, /*expand=*/true, std::nullopt);
//   rotate(image, rotation, Filter::bilinear, fill, scratch);
//   rotate(image, by_map(affine_map(...), size), Filter::nearest, fill, scratch);   // any map
//
// The maps are computed once a sample, in doubles, with the sine and cosine of draw_math.h: the last bit of a
// coefficient can differ from Pillow's, which takes libm's; what the pixels do with equal coefficients is exact.
// Filters: nearest, bilinear and bicubic. Thread-safety: pure functions on the caller's image and scratch.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/pixels/image_types.h"
#include "runtime/pixels/resample.h"
#include "runtime/pixels/warp_math.h"

namespace penstock {

using Point = std::array<double, 2>;  // x, y

// Image.rotate(degrees), counter-clockwise. A multiple of a quarter turn about the middle moves pixels and computes
// none.
struct Rotation {
  enum class Kind : uint8_t { none, quarter, half, three_quarters, map };
  Kind kind = Kind::none;
  Size out;
  WarpMap map;  // Kind::map
};
Rotation by_map(const WarpMap& map, Size out);
Rotation rotation_of(double degrees, Size in, bool expand, std::optional<Point> center);

// torchvision's inverse of: shear, scale and rotate (clockwise) about `center`, then translate. Angles in degrees.
WarpMap affine_map(Point center, double angle, Point translate, double scale, Point shear);

// torchvision's map that takes the image's corners (top left, top right, bottom right, bottom left) to `corners`; its
// coefficients are rounded to float, as there. Identity where no such map exists.
WarpMap perspective_map(Size size, const std::array<Point, 4>& corners);

// Pillow's three ways of a nearest affine map. They differ in the last bit of a coordinate, and so do their pixels.
enum class NearestMethod : uint8_t {
  scaled,  // ImagingScaleAffine: no rotation, no shear; coordinates are added up
  fixed,   // affine_fixed: Q16
  added,   // the rest of ImagingTransformAffine: maps that leave the range of Q16; coordinates are added up
};
NearestMethod nearest_method(const WarpMap& map, Size out);
FixedMap fixed_map(const WarpMap& map);
// The source's columns or rows of a scaled map, for `out` of them; -1: outside.
void scaled_places(double scale, double shift, int in, int out, std::vector<int32_t>& places);

void rotate(PixelBuffer& image, const Rotation& rotation, Filter filter, const Fill& fill, PaintScratch& scratch);
}  // namespace penstock
