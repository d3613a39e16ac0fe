#include <algorithm>
#include <cmath>
#include <utility>

#include "runtime/transforms/transforms.h"

namespace penstock {

namespace {

// torchvision's RandomResizedCrop: up to ten tries at a box of random area and aspect, then a central box. With several
// filters, of which each sample gets one, it is timm's RandomResizedCropAndInterpolation.
//
// Draws: [x, y, width, height] of the box in the input's pixels; with several filters also [the filter's place].
// Draw numbers: try t uses 4t (area), 4t + 1 (log of the aspect), 4t + 2 (y) and 4t + 3 (x); with several filters 0 is
//   the filter's, and the others are larger by one.
class RandomResizedCrop final : public GeometricTransform {
 public:
  explicit RandomResizedCrop(const ParamMap& params)
      : size_(size_param(params, "size")), filters_(filters_param(params, "interpolation")) {
    const std::vector<double>& scale = list_param(params, "scale");
    const std::vector<double>& ratio = list_param(params, "ratio");
    scale_[0] = scale[0];
    scale_[1] = scale[1];
    ratio_[0] = ratio[0];
    ratio_[1] = ratio[1];
    log_ratio_[0] = draw_log(ratio[0]);
    log_ratio_[1] = draw_log(ratio[1]);
  }

  void draw(DrawStream& stream, Size in, std::vector<int64_t>& values) const override {
    if (filters_.size() == 1) return draw_box(stream, in, values);
    const int64_t filter = stream.below(static_cast<uint32_t>(filters_.size()));
    draw_box(stream, in, values);
    values.push_back(filter);
  }

  SampleStatus geometry(Size in, std::span<const int64_t> values, OpList& ops) const override {
    require_draws(values, filters_.size() == 1 ? 4 : 5, "RandomResizedCrop");
    const int64_t x = values[0], y = values[1], w = values[2], h = values[3];
    const int64_t filter = filters_.size() == 1 ? 0 : values[4];
    if (x < 0 || y < 0 || w < 1 || h < 1 || w > in.width || h > in.height || x > in.width - w || y > in.height - h) {
      throw Error(ErrorKind::usage, "RandomResizedCrop: the drawn box lies outside the image",
                  "use the draws that Pipeline::draw made for this sample");
    }
    if (filter < 0 || filter >= static_cast<int64_t>(filters_.size())) {
      throw Error(ErrorKind::usage, "RandomResizedCrop has no interpolation " + std::to_string(filter),
                  "use the draws that Pipeline::draw made for this pipeline");
    }
    ops.crop({static_cast<int>(x), static_cast<int>(y), static_cast<int>(w), static_cast<int>(h)});
    ops.resize(size_, filters_[static_cast<size_t>(filter)]);
    return SampleStatus::good();
  }

  bool draws_only_cuts() const noexcept override { return filters_.size() == 1; }
  std::optional<Size> fixed_size(std::optional<Size>) const override { return size_; }

 private:
  void draw_box(DrawStream& stream, Size in, std::vector<int64_t>& values) const {
    const double area = static_cast<double>(in.width) * in.height;
    for (int attempt = 0; attempt < 10; ++attempt) {
      const double target = area * stream.uniform(scale_[0], scale_[1]);
      const double aspect = draw_exp(stream.uniform(log_ratio_[0], log_ratio_[1]));
      const double width = round_half_even(std::sqrt(target * aspect));
      const double height = round_half_even(std::sqrt(target / aspect));
      const uint64_t vertical = stream.bits();
      const uint64_t horizontal = stream.bits();
      if (width >= 1 && width <= in.width && height >= 1 && height <= in.height) {
        const auto w = static_cast<int>(width);
        const auto h = static_cast<int>(height);
        const int64_t y = DrawStream::scale_to(vertical, static_cast<uint32_t>(in.height - h + 1));
        const int64_t x = DrawStream::scale_to(horizontal, static_cast<uint32_t>(in.width - w + 1));
        values.insert(values.end(), {x, y, w, h});
        return;
      }
    }
    int w = in.width;
    int h = in.height;
    const double in_ratio = static_cast<double>(in.width) / static_cast<double>(in.height);
    if (in_ratio < ratio_[0]) {
      h = static_cast<int>(round_half_even(w / ratio_[0]));
    } else if (in_ratio > ratio_[1]) {
      w = static_cast<int>(round_half_even(h * ratio_[1]));
    }
    // torchvision would crop an empty box from an extreme sliver; one pixel is the nearest thing that is an image.
    w = std::clamp(w, 1, in.width);
    h = std::clamp(h, 1, in.height);
    values.insert(values.end(), {(in.width - w) / 2, (in.height - h) / 2, w, h});
  }

  Size size_;
  std::vector<Filter> filters_;
  double scale_[2] = {0, 0};
  double ratio_[2] = {0, 0};
  double log_ratio_[2] = {0, 0};
};

std::string check_crop(const ParamMap& params, std::string& culprit) {
  for (const char* name : {"scale", "ratio"}) {
    const std::vector<double>& range = list_param(params, name);
    culprit = name;
    if (range[0] > range[1]) return "must be [smaller, larger]";
    if (range[0] <= 0) return "must be above 0";
  }
  return {};
}

}  // namespace

TransformInfo random_resized_crop_info() {
  ParamInfo interpolation = interpolation_info();
  interpolation.kind = ParamKind::texts;
  interpolation.doc += ". Of a list each sample gets one, all alike probable: timm's random is [bilinear, bicubic]";
  return {.name = "RandomResizedCrop",
          .doc = "crops a box of random area and aspect ratio, then resizes it to a fixed size",
          .params = {size_info("size of the result: one number, or [height, width]"), box_scale_info(0.08, 1.0),
                     box_ratio_info(3.0 / 4.0, 4.0 / 3.0, "range of the box's width / height"),
                     std::move(interpolation), antialias_info()},
          .check = check_crop,
          .make = [](const ParamMap& params) { return std::make_unique<RandomResizedCrop>(params); }};
}

}  // namespace penstock
