#include "runtime/augment/transforms.h"

namespace penstock {

namespace {

// torchvision's RandomInvert. Draws: [1] when it inverts, else [0].
class RandomInvert final : public Transform {
 public:
  explicit RandomInvert(double p) : p_(p) {}
  Kind kind() const noexcept override { return Kind::pixels; }
  bool colour_only() const noexcept override { return true; }

  void draw(DrawStream& stream, Size, std::vector<int64_t>& values) const override {
    values.push_back(stream.bernoulli(p_) ? 1 : 0);
  }

  bool acts(std::span<const int64_t> values) const override {
    require_draws(values, 1, "RandomInvert");
    return values[0] != 0;
  }

  Verdict paint(PixelBuffer& image, std::span<const int64_t>, ImageRole role, PaintScratch&) const override {
    if (role == ImageRole::mask) return Verdict::good();
    uint8_t* pixel = image.row(0);
    const uint8_t* end = pixel + image.row_bytes() * static_cast<size_t>(image.height());
    for (; pixel < end; ++pixel) *pixel = static_cast<uint8_t>(255 - *pixel);
    return Verdict::good();
  }

 private:
  double p_;
};

}  // namespace

TransformInfo random_invert_info() {
  return {.name = "RandomInvert",
          .doc = "makes the negative with probability p",
          .params = {{.name = "p",
                      .kind = ParamKind::number,
                      .default_value = 0.5,
                      .minimum = 0,
                      .maximum = 1,
                      .doc = "probability of the negative"}},
          .make = [](const ParamMap& params) { return std::make_unique<RandomInvert>(number_param(params, "p")); }};
}

}  // namespace penstock
