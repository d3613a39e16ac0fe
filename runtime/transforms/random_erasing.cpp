#include <cmath>

#include "runtime/pixels/pixel_ops.h"
#include "runtime/transforms/transforms.h"

namespace penstock {

namespace {

// torchvision's RandomErasing, on uint8 pixels: `value` is a colour of 0 to 255, as in torchvision's on uint8 images.
// "random" is noise, uniform over 0 to 255 as in the paper (Zhong et al. 2017); torchvision's is normal, for images
// that are normalised already, which uint8 cannot hold.
//
// Draws: [x, y, width, height of the box; 0 wide where nothing is erased], with "random" also the noise's seed (63
// bits). Draw numbers: 0 whether; try t uses 4t + 1 (area), 4t + 2 (log of the aspect), 4t + 3 (y) and 4t + 4 (x); 41
// the seed.
class RandomErasing final : public PixelTransform {
 public:
  explicit RandomErasing(const ParamMap& params)
      : p_(number_param(params, "p")), noise_(std::holds_alternative<std::string>(params.at("value"))) {
    const std::vector<double>& scale = list_param(params, "scale");
    const std::vector<double>& ratio = list_param(params, "ratio");
    scale_ = {scale[0], scale[1]};
    log_ratio_ = {draw_log(ratio[0]), draw_log(ratio[1])};
    if (!noise_) value_ = fill_param(params, "value");
  }

  bool colour_only() const noexcept override { return true; }

  void draw(DrawStream& stream, Size in, std::vector<int64_t>& values) const override {
    const bool happens = stream.bernoulli(p_);
    const double area = static_cast<double>(in.width) * in.height;
    int64_t box[4] = {0, 0, 0, 0};
    bool found = false;
    for (int attempt = 0; attempt < 10; ++attempt) {
      const double target = area * stream.uniform(scale_[0], scale_[1]);
      const double aspect = draw_exp(stream.uniform(log_ratio_[0], log_ratio_[1]));
      const double height = round_half_even(std::sqrt(target * aspect));
      const double width = round_half_even(std::sqrt(target / aspect));
      const uint64_t vertical = stream.bits();
      const uint64_t horizontal = stream.bits();
      // torchvision goes on trying until the box is smaller than the image in both directions.
      if (found || height >= in.height || width >= in.width) continue;
      found = true;
      if (!happens || width < 1 || height < 1) continue;
      box[2] = static_cast<int64_t>(width);
      box[3] = static_cast<int64_t>(height);
      box[0] = DrawStream::scale_to(horizontal, static_cast<uint32_t>(in.width - box[2] + 1));
      box[1] = DrawStream::scale_to(vertical, static_cast<uint32_t>(in.height - box[3] + 1));
    }
    values.insert(values.end(), std::begin(box), std::end(box));
    if (noise_) values.push_back(static_cast<int64_t>(stream.bits() >> 1));
  }

  bool acts(std::span<const int64_t> values) const override {
    require_draws(values, noise_ ? 5 : 4, "RandomErasing");
    return values[2] > 0 && values[3] > 0;
  }

  bool list_ops(Size in, std::span<const int64_t> values, ImageRole role, PixelOpSink& to) const override {
    if (role == ImageRole::mask) return true;
    const int64_t x = values[0], y = values[1], width = values[2], height = values[3];
    if (x < 0 || y < 0 || width > in.width || height > in.height || x > in.width - width || y > in.height - height) {
      throw Error(ErrorKind::usage, "RandomErasing: the drawn box lies outside the image",
                  "use the draws that Pipeline::draw made for this sample");
    }
    EraseOp op{.box = {static_cast<int>(x), static_cast<int>(y), static_cast<int>(width), static_cast<int>(height)},
               .noise = noise_,
               .fill = value_};
    if (noise_) op.seed = static_cast<uint64_t>(values[4]);
    to.add(op);
    return true;
  }

 private:
  double p_;
  bool noise_;
  std::array<double, 2> scale_{};
  std::array<double, 2> log_ratio_{};
  Fill value_{};
};

}  // namespace

TransformInfo random_erasing_info() {
  return {.name = "RandomErasing",
          .doc = "paints over a box of random area and aspect ratio, with probability p",
          .params = {probability_info(0.5, "probability that a box is erased"),
                     box_scale_info(0.02, 0.33),
                     box_ratio_info(0.3, 3.3, "range of the box's height / width"),
                     {.name = "value",
                      .kind = ParamKind::integers,
                      .default_value = std::vector<double>{0},
                      .minimum = 0,
                      .maximum = 255,
                      .choices = {"random"},
                      .lengths = {1, 3},
                      .doc = "colour of the box, before any Normalize: one number, [red, green, blue], or random: "
                             "uniform noise"},
                     boolean_info("inplace", false, "torchvision's word; changes nothing here")},
          .check = rising({"scale", "ratio"}),
          .make = [](const ParamMap& params) { return std::make_unique<RandomErasing>(params); }};
}

}  // namespace penstock
