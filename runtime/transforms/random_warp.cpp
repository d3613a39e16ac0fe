#include "runtime/pixels/pixel_ops.h"
#include "runtime/transforms/transforms.h"

namespace penstock {

namespace {

std::array<double, 2> range_of(const std::vector<double>& list) {
  if (list.size() == 1) return {-list[0], list[0]};
  return {list[0], list[1]};
}

// What the three share: whole images, a filter, a colour for what comes from outside.
class Warp : public PixelTransform {
 public:
  explicit Warp(const ParamMap& params) : filter_(filter_param(params, "interpolation")), fill_(fills_param(params)) {}

 protected:
  Filter filter(ImageRole role) const noexcept { return role == ImageRole::mask ? Filter::nearest : filter_; }
  Fill fill(ImageRole role) const noexcept { return fill_.of(role); }

  static std::optional<Point> center_param(const ParamMap& params) {
    if (!is_given(params, "center")) return std::nullopt;
    const std::vector<double>& center = list_param(params, "center");
    return Point{center[0], center[1]};
  }

 private:
  Filter filter_;
  Fills fill_;
};

// torchvision's RandomRotation. Draws: [the angle in degrees, in units of 2^-32], counter-clockwise.
class RandomRotation final : public Warp {
 public:
  explicit RandomRotation(const ParamMap& params)
      : Warp(params),
        degrees_(range_of(list_param(params, "degrees"))),
        expand_(boolean_param(params, "expand")),
        center_(center_param(params)) {}

  void draw(DrawStream& stream, Size, std::vector<int64_t>& values) const override {
    values.push_back(draw_fixed(stream, degrees_));
  }

  bool acts(std::span<const int64_t> values) const override {
    require_draws(values, 1, "RandomRotation");
    return values[0] % (int64_t{360} << 32) != 0;
  }

  SampleStatus size_after(Size in, std::span<const int64_t> values, Size& out) const override {
    require_draws(values, 1, "RandomRotation");
    out = rotation(in, values).out;
    return SampleStatus::good();
  }

  bool list_ops(Size in, std::span<const int64_t> values, ImageRole role, PixelOpSink& to) const override {
    to.add(WarpOp{rotation(in, values), filter(role), fill(role)});
    return true;
  }

  std::optional<Size> fixed_size(std::optional<Size> in) const override { return expand_ ? std::nullopt : in; }

 private:
  Rotation rotation(Size in, std::span<const int64_t> values) const {
    return rotation_of(from_fixed(values[0]), in, expand_, center_);
  }

  std::array<double, 2> degrees_;
  bool expand_;
  std::optional<Point> center_;
};

// torchvision's RandomAffine.
//
// Draws: [angle, translation x, y in whole pixels, scale, shear x, y]; angles in degrees, and scale, in units of 2^-32.
// Draw numbers: in that order.
class RandomAffine final : public Warp {
 public:
  explicit RandomAffine(const ParamMap& params)
      : Warp(params), degrees_(range_of(list_param(params, "degrees"))), center_(center_param(params)) {
    if (is_given(params, "translate")) {
      const std::vector<double>& translate = list_param(params, "translate");
      translate_ = {translate[0], translate[1]};
    }
    if (is_given(params, "scale")) scale_ = range_of(list_param(params, "scale"));
    if (is_given(params, "shear")) {
      const std::vector<double>& shear = list_param(params, "shear");
      shear_x_ = range_of(shear);
      if (shear.size() == 4) shear_y_ = {shear[2], shear[3]};
    }
  }

  void draw(DrawStream& stream, Size in, std::vector<int64_t>& values) const override {
    values.push_back(draw_fixed(stream, degrees_));
    const double largest[2] = {translate_[0] * in.width, translate_[1] * in.height};
    for (const double shift : largest) {
      values.push_back(static_cast<int64_t>(round_half_even(stream.uniform(-shift, shift))));
    }
    values.push_back(draw_fixed(stream, scale_));
    values.push_back(draw_fixed(stream, shear_x_));
    values.push_back(draw_fixed(stream, shear_y_));
  }

  bool acts(std::span<const int64_t> values) const override {
    require_draws(values, 6, "RandomAffine");
    return values[0] != 0 || values[1] != 0 || values[2] != 0 || values[3] != to_fixed(1) || values[4] != 0 ||
           values[5] != 0;
  }

  bool list_ops(Size in, std::span<const int64_t> values, ImageRole role, PixelOpSink& to) const override {
    if (values[3] <= 0) throw Error(ErrorKind::usage, "RandomAffine: a scale must be above 0");
    const Point center = center_.value_or(Point{in.width * 0.5, in.height * 0.5});
    const WarpMap map =
        affine_map(center, from_fixed(values[0]), {static_cast<double>(values[1]), static_cast<double>(values[2])},
                   from_fixed(values[3]), {from_fixed(values[4]), from_fixed(values[5])});
    to.add(WarpOp{by_map(map, in), filter(role), fill(role)});
    return true;
  }

 private:
  std::array<double, 2> degrees_;
  std::array<double, 2> translate_{0, 0};
  std::array<double, 2> scale_{1, 1};
  std::array<double, 2> shear_x_{0, 0};
  std::array<double, 2> shear_y_{0, 0};
  std::optional<Point> center_;
};

// torchvision's RandomPerspective.
//
// Draws: [1 when it happens, else 0; then x, y of where the corners go: top left, top right, bottom right, bottom
// left]. Draw numbers: in that order.
class RandomPerspective final : public Warp {
 public:
  explicit RandomPerspective(const ParamMap& params)
      : Warp(params), distortion_(number_param(params, "distortion_scale")), p_(number_param(params, "p")) {}

  void draw(DrawStream& stream, Size in, std::vector<int64_t>& values) const override {
    values.push_back(stream.bernoulli(p_) ? 1 : 0);
    const auto width = static_cast<uint32_t>(distortion_ * (in.width / 2)) + 1;
    const auto height = static_cast<uint32_t>(distortion_ * (in.height / 2)) + 1;
    constexpr bool right[4] = {false, true, true, false};
    constexpr bool bottom[4] = {false, false, true, true};
    for (size_t i = 0; i < 4; ++i) {
      const int64_t x = stream.below(width);
      const int64_t y = stream.below(height);
      values.push_back(right[i] ? in.width - static_cast<int64_t>(width) + x : x);
      values.push_back(bottom[i] ? in.height - static_cast<int64_t>(height) + y : y);
    }
  }

  bool acts(std::span<const int64_t> values) const override {
    require_draws(values, 9, "RandomPerspective");
    return values[0] != 0;
  }

  bool list_ops(Size in, std::span<const int64_t> values, ImageRole role, PixelOpSink& to) const override {
    std::array<Point, 4> corners;
    for (size_t i = 0; i < 4; ++i) {
      corners[i] = {static_cast<double>(values[1 + 2 * i]), static_cast<double>(values[2 + 2 * i])};
    }
    to.add(WarpOp{by_map(perspective_map(in, corners), in), filter(role), fill(role)});
    return true;
  }

 private:
  double distortion_;
  double p_;
};

std::string check_increasing(const ParamMap& params, std::string& culprit) {
  for (const char* name : {"degrees", "shear", "scale"}) {
    const auto found = params.find(name);
    if (found == params.end() || !is_given(params, name)) continue;
    const std::vector<double>& list = list_param(params, name);
    culprit = name;
    if (list.size() == 1 && list[0] < 0) return "a single number must not be negative";
    for (size_t i = 0; i + 1 < list.size(); i += 2) {
      if (list[i] > list[i + 1]) return "must be [smaller, larger]";
    }
    if (culprit == "scale" && list[0] <= 0) return "must be above 0";
  }
  return {};
}

ParamInfo degrees_info() {
  return numbers_info("degrees", {}, -1e6, 1e6, {1, 2}, "range of the angle: d for -d to d, or [smallest, largest]");
}

ParamInfo center_info() {
  return numbers_info("center", ParamValue{}, -1e6, 1e6, {2},
                      "[x, y] of the point that stays in its place; the image's middle where not given");
}

constexpr const char* kOutsideDoc = "colour of what comes from outside: one number, or [red, green, blue]";

}  // namespace

TransformInfo random_rotation_info() {
  return {.name = "RandomRotation",
          .doc = "rotates by a random angle, counter-clockwise",
          .params = {degrees_info(), warp_interpolation_info("nearest"),
                     boolean_info("expand", false,
                                  "make the image as large as the rotated one, instead of keeping its size"),
                     center_info(), fill_info(kOutsideDoc), mask_fill_info()},
          .check = check_increasing,
          .make = [](const ParamMap& params) { return std::make_unique<RandomRotation>(params); }};
}

TransformInfo random_affine_info() {
  return {.name = "RandomAffine",
          .doc = "rotates (clockwise), shifts, scales and shears by random amounts",
          .params = {degrees_info(),
                     numbers_info("translate", ParamValue{}, 0, 1, {2}, "largest shifts, as shares of [width, height]"),
                     numbers_info("scale", ParamValue{}, 0, 1e6, {2}, "range of the scale: [smallest, largest]"),
                     numbers_info("shear", ParamValue{}, -1e6, 1e6, {1, 2, 4},
                                  "range of the shear in degrees: d for -d to d along x, [smallest, largest] along "
                                  "x, or four numbers for x and y"),
                     warp_interpolation_info("nearest"), fill_info(kOutsideDoc), center_info(), mask_fill_info()},
          .check = check_increasing,
          .make = [](const ParamMap& params) { return std::make_unique<RandomAffine>(params); }};
}

TransformInfo random_perspective_info() {
  return {.name = "RandomPerspective",
          .doc = "moves the four corners inwards at random, with probability p",
          .params = {number_info("distortion_scale", 0.5, 0, 1, "how far a corner may move, as a share of half a side"),
                     probability_info(0.5, "probability that the image changes"), warp_interpolation_info("bilinear"),
                     fill_info(kOutsideDoc), mask_fill_info()},
          .make = [](const ParamMap& params) { return std::make_unique<RandomPerspective>(params); }};
}

}  // namespace penstock
