#include "runtime/transforms/policy_ops.h"

#include "runtime/pixels/draw_math.h"
#include "runtime/pixels/pixel_ops.h"

namespace penstock {

namespace {

// Point `i` of `count` evenly spaced ones in float: torch.linspace where it has fused multiply-add, from the nearer
// end, rounded once. In double a float's multiple by a bin, and its sum with a float of that size, are exact.
float grid(double start_value, double end_value, int count, int i) {
  const auto start = static_cast<float>(start_value);
  const auto end = static_cast<float>(end_value);
  if (count == 1) return start;
  const auto step = static_cast<double>((end - start) / static_cast<float>(count - 1));
  return static_cast<float>(i < count / 2 ? static_cast<double>(start) + step * i
                                          : static_cast<double>(end) - step * (count - 1 - i));
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

double magnitude_of(const MagnitudeTable& table, PolicyOp op, int bin, int bins, bool negated, Size size) {
  double value = 0;
  switch (op) {
    case PolicyOp::shear_x:
    case PolicyOp::shear_y: value = grid(0, table.shear, bins, bin); break;
    case PolicyOp::translate_x:
      value = grid(0, table.translate_in_pixels ? table.translate : table.translate * size.width, bins, bin);
      break;
    case PolicyOp::translate_y:
      value = grid(0, table.translate_in_pixels ? table.translate : table.translate * size.height, bins, bin);
      break;
    case PolicyOp::rotate: value = grid(0, table.rotate, bins, bin); break;
    case PolicyOp::brightness:
    case PolicyOp::color:
    case PolicyOp::contrast:
    case PolicyOp::sharpness: value = grid(0, table.enhance, bins, bin); break;
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
    default: break;
  }
  return negated && has_sign(op) ? -value : value;
}

void add_op(PolicyOp op, double magnitude, Filter filter, const Fills& fill, Size in, ImageRole role, PixelOpSink& to) {
  const bool mask = role == ImageRole::mask;
  const auto warped = [&](const Rotation& by) { to.add(WarpOp{by, mask ? Filter::nearest : filter, fill.of(role)}); };
  const auto pixels = static_cast<double>(static_cast<int>(magnitude));
  const auto factor = static_cast<float>(1.0 + magnitude);
  switch (op) {
    case PolicyOp::shear_x: return warped(by_map(shear_map(magnitude, 0), in));
    case PolicyOp::shear_y: return warped(by_map(shear_map(0, magnitude), in));
    case PolicyOp::translate_x: return warped(by_map(translate_map(pixels, 0), in));
    case PolicyOp::translate_y: return warped(by_map(translate_map(0, pixels), in));
    case PolicyOp::rotate: return warped(rotation_of(magnitude, in, false, std::nullopt));
    default: break;
  }
  if (mask) return;
  switch (op) {
    case PolicyOp::brightness: return to.add(TableOp{brightness_table(factor)});
    case PolicyOp::color: return to.add(SaturationOp{factor});
    case PolicyOp::contrast: return to.add(ContrastOp{factor});
    case PolicyOp::sharpness: return to.add(SharpnessOp{factor});
    case PolicyOp::posterize: return to.add(TableOp{posterize_table(static_cast<int>(magnitude))});
    case PolicyOp::solarize: return to.add(TableOp{solarize_table(magnitude)});
    case PolicyOp::auto_contrast: return to.add(AutocontrastOp{});
    case PolicyOp::equalize: return to.add(EqualizeOp{});
    case PolicyOp::invert: return to.add(TableOp{invert_table()});
    default: return;
  }
}

}  // namespace penstock
