#include "runtime/pixels/pixel_ops.h"
#include "runtime/transforms/transforms.h"

namespace penstock {

namespace {

// torchvision v2's GaussianNoise, as it is on uint8 images: here pixels are bytes until the finishing pass. On floats, as
// behind torchvision's ToDtype, the noise would not be cut to whole bytes.
//
// Draws: [the noise's seed (63 bits)].
class GaussianNoise final : public PixelTransform {
 public:
  explicit GaussianNoise(const ParamMap& params)
      : offset_(static_cast<float>(number_param(params, "mean") * 255)),
        spread_(static_cast<float>(number_param(params, "sigma") * 255)),
        clip_(boolean_param(params, "clip")) {}

  bool colour_only() const noexcept override { return true; }

  void draw(DrawStream& stream, Size, std::vector<int64_t>& values) const override {
    values.push_back(static_cast<int64_t>(stream.bits() >> 1));
  }

  bool acts(std::span<const int64_t> values) const override {
    require_draws(values, 1, "GaussianNoise");
    return offset_ != 0 || spread_ != 0;
  }

  bool list_ops(Size, std::span<const int64_t> values, ImageRole role, PixelOpSink& to) const override {
    if (role == ImageRole::image) to.add(NoiseOp{offset_, spread_, clip_, static_cast<uint64_t>(values[0])});
    return true;
  }

 private:
  float offset_;
  float spread_;
  bool clip_;
};

}  // namespace

TransformInfo gaussian_noise_info() {
  // Noise of these sizes stays within 16 bits, which torchvision converts it to.
  return {
      .name = "GaussianNoise",
      .doc = "adds normal noise to each byte",
      .params = {number_info("mean", 0.0, -10, 10, "mean of the noise; 1 is 255"),
                 number_info("sigma", 0.1, 0, 10, "standard deviation of the noise; 1 is 255"),
                 boolean_info("clip", true,
                              "whether sums are cut to 0 to 255; else they wrap around, as torchvision's do on bytes")},
      .make = [](const ParamMap& params) { return std::make_unique<GaussianNoise>(params); }};
}

}  // namespace penstock
