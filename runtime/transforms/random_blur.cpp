#include "runtime/pixels/pixel_ops.h"
#include "runtime/transforms/transforms.h"

namespace penstock {

namespace {

// torchvision's GaussianBlur. Draws: [sigma in pixels, in units of 2^-32].
class GaussianBlur final : public PixelTransform {
 public:
  explicit GaussianBlur(const ParamMap& params) {
    const std::vector<double>& size = list_param(params, "kernel_size");
    const std::vector<double>& sigma = list_param(params, "sigma");
    size_[0] = static_cast<int>(size.front());
    size_[1] = static_cast<int>(size.back());
    sigma_ = {sigma.front(), sigma.back()};
  }

  bool colour_only() const noexcept override { return true; }

  void draw(DrawStream& stream, Size, std::vector<int64_t>& values) const override {
    values.push_back(draw_fixed(stream, sigma_));
  }

  bool acts(std::span<const int64_t> values) const override {
    require_draws(values, 1, "GaussianBlur");
    return size_[0] > 1 || size_[1] > 1;
  }

  bool list_ops(Size, std::span<const int64_t> values, ImageRole role, PixelOpSink& to) const override {
    if (role == ImageRole::mask) return true;
    if (values[0] <= 0) throw Error(ErrorKind::usage, "GaussianBlur: sigma must be above 0");
    const double sigma = from_fixed(values[0]);
    to.add(BlurOp{gaussian_weights(size_[0], sigma), gaussian_weights(size_[1], sigma)});
    return true;
  }

 private:
  int size_[2] = {1, 1};  // across, down
  std::array<double, 2> sigma_{};
};

std::string check_blur(const ParamMap& params, std::string& culprit) {
  culprit = "kernel_size";
  for (const double size : list_param(params, "kernel_size")) {
    if (static_cast<int>(size) % 2 == 0) return "must be odd";
  }
  culprit = "sigma";
  const std::vector<double>& sigma = list_param(params, "sigma");
  return sigma.front() > sigma.back() ? "must be [smaller, larger]" : "";
}

}  // namespace

TransformInfo gaussian_blur_info() {
  return {.name = "GaussianBlur",
          .doc = "blurs with a Gaussian of random width",
          .params = {integers_info("kernel_size", {}, 1, GaussianWeights::kMaxSize, {1, 2},
                                   "odd size of the kernel in pixels: one number, or [across, down]"),
                     numbers_info("sigma", std::vector<double>{0.1, 2.0}, 1e-3, 1e6, {1, 2},
                                  "range of the standard deviation in pixels: [smallest, largest], or one number")},
          .check = check_blur,
          .make = [](const ParamMap& params) { return std::make_unique<GaussianBlur>(params); }};
}

}  // namespace penstock
