#include "runtime/augment/policy_ops.h"

#include "runtime/augment/color.h"
#include "runtime/augment/draw_math.h"
#include "runtime/augment/warp.h"

namespace penstock {

namespace {

// Point `i` of `count` evenly spaced ones in float, correctly rounded.
float grid(double start_value, double end_value, int count, int i) {
  const auto start = static_cast<double>(static_cast<float>(start_value));
  const auto end = static_cast<double>(static_cast<float>(end_value));
  if (count == 1) return static_cast<float>(start);
  return static_cast<float>((start * (count - 1 - i) + end * i) / (count - 1));
}

WarpMap shear_map(double x, double y) {
  WarpMap map;
  map.a[1] = x;
  map.a[3] = y;
  return map;
}

WarpMap translate_map(double x, double y) {
  WarpMap map;
  map.a[2] = -x;
  map.a[5] = -y;
  return map;
}

}  // namespace

bool has_sign(PolicyOp op) {
  return op >= PolicyOp::shear_x && op <= PolicyOp::sharpness;
}

bool has_magnitude(PolicyOp op) {
  return op >= PolicyOp::shear_x && op <= PolicyOp::solarize;
}

double magnitude_of(const MagnitudeTable& table, PolicyOp op, int bin, int bins, bool negated, Size size) {
  double value = 0;
  switch (op) {
    case PolicyOp::shear_x:
    case PolicyOp::shear_y:
      value = grid(0, table.shear, bins, bin);
      break;
    case PolicyOp::translate_x:
      value = grid(0, table.translate_in_pixels ? table.translate : table.translate * size.width, bins, bin);
      break;
    case PolicyOp::translate_y:
      value = grid(0, table.translate_in_pixels ? table.translate : table.translate * size.height, bins, bin);
      break;
    case PolicyOp::rotate:
      value = grid(0, table.rotate, bins, bin);
      break;
    case PolicyOp::brightness:
    case PolicyOp::color:
    case PolicyOp::contrast:
    case PolicyOp::sharpness:
      value = grid(0, table.enhance, bins, bin);
      break;
    case PolicyOp::posterize: {
      const float step = static_cast<float>(bins - 1) / static_cast<float>(table.posterize_range);
      const float fewer = bins == 1 ? 0.0F : static_cast<float>(bin) / step;
      value = round_half_even(static_cast<double>(static_cast<float>(table.posterize_from) - fewer));
      break;
    }
    case PolicyOp::solarize:
      // As torchvision v2, whose thresholds that would be whole numbers come out above or below them by their last bit.
      value = 255.0 * static_cast<double>(grid(1, 0, bins, bin));
      break;
    default:
      break;
  }
  return negated && has_sign(op) ? -value : value;
}

void apply_op(PixelBuffer& image, PolicyOp op, double magnitude, Filter filter, const Fills& fill, ImageRole role,
              PaintScratch& scratch) {
  const bool mask = role == ImageRole::mask;
  const Filter geometric = mask ? Filter::nearest : filter;
  const Fill outside = fill.of(role);
  const auto pixels = static_cast<double>(static_cast<int>(magnitude));
  const auto factor = static_cast<float>(1.0 + magnitude);
  switch (op) {
    case PolicyOp::shear_x:
      return warp(image, shear_map(magnitude, 0), geometric, outside, scratch);
    case PolicyOp::shear_y:
      return warp(image, shear_map(0, magnitude), geometric, outside, scratch);
    case PolicyOp::translate_x:
      return warp(image, translate_map(pixels, 0), geometric, outside, scratch);
    case PolicyOp::translate_y:
      return warp(image, translate_map(0, pixels), geometric, outside, scratch);
    case PolicyOp::rotate: {
      const Size size{image.width(), image.height()};
      return rotate(image, rotation_of(magnitude, size, false, std::nullopt), geometric, outside, scratch);
    }
    default:
      break;
  }
  if (mask) return;
  switch (op) {
    case PolicyOp::brightness:
      return adjust_brightness(image, factor);
    case PolicyOp::color:
      return adjust_saturation(image, factor);
    case PolicyOp::contrast:
      return adjust_contrast(image, factor);
    case PolicyOp::sharpness:
      return adjust_sharpness(image, factor, scratch);
    case PolicyOp::posterize:
      return map_bytes(image, posterize_table(static_cast<int>(magnitude)));
    case PolicyOp::solarize:
      return map_bytes(image, solarize_table(magnitude));
    case PolicyOp::auto_contrast:
      return autocontrast(image);
    case PolicyOp::equalize:
      return equalize(image);
    case PolicyOp::invert:
      return map_bytes(image, invert_table());
    default:
      return;
  }
}

}  // namespace penstock
