#include "runtime/transforms/transforms.h"

namespace penstock {

namespace {

// torchvision v2's ToDtype for images. `scale` multiplies by the rounded 1/255, as v2 does (ToTensor and v1's
// convert_image_dtype divide, which may differ by one unit in the last place). It runs in the finishing pass: float32
// arithmetic, one rounding to float16 or bfloat16 at the very end. So ToDtype(float16) before Normalize is more precise
// than torch, which would normalise in float16; ToDtype(float32), Normalize, ToDtype(float16) is equal to torch, bit
// for bit.
class ToDtype final : public FinishingTransform {
 public:
  explicit ToDtype(const ParamMap& params) : scale_(boolean_param(params, "scale")) {
    const std::string& name = text_param(params, "dtype");
    dtype_ = name == "uint8"     ? DType::uint8
             : name == "float32" ? DType::float32
             : name == "float16" ? DType::float16
                                 : DType::bfloat16;
  }

  std::string finish(FinishSpec& spec) const override {
    if (spec.dtype == DType::uint8) {
      // scale is from the range of one type to that of the other: nothing from uint8 to uint8, nothing between floats.
      spec.scale = scale_ && dtype_ != DType::uint8;
    } else if (dtype_ == DType::uint8) {
      return "ToDtype: a float tensor cannot go back to uint8";
    }
    spec.dtype = dtype_;
    return {};
  }

 private:
  DType dtype_ = DType::float32;
  bool scale_;
};

// torchvision's Normalize: (y - mean) / std per channel.
class Normalize final : public FinishingTransform {
 public:
  explicit Normalize(const ParamMap& params) {
    const std::vector<double>& mean = list_param(params, "mean");
    const std::vector<double>& std = list_param(params, "std");
    for (size_t channel = 0; channel < 3; ++channel) {
      mean_[channel] = static_cast<float>(mean[channel % mean.size()]);
      std_[channel] = static_cast<float>(std[channel % std.size()]);
    }
  }

  std::string finish(FinishSpec& spec) const override {
    if (spec.dtype == DType::uint8)
      return "Normalize needs a float tensor: put ToDtype: {dtype: float32, scale: true} before it";
    if (spec.normalize) return "Normalize stands twice in the pipeline";
    spec.normalize = true;
    spec.mean = mean_;
    spec.std = std_;
    return {};
  }

 private:
  std::array<float, 3> mean_{};
  std::array<float, 3> std_{};
};

std::string check_normalize(const ParamMap& params, std::string& culprit) {
  culprit = "std";
  for (const double value : list_param(params, "std")) {
    if (static_cast<float>(value) == 0) return "must not be 0";
  }
  return {};
}

}  // namespace

TransformInfo to_dtype_info() {
  return {.name = "ToDtype",
          .doc = "the tensor's type; done in the finishing pass, so uint8 travels",
          .params = {{.name = "dtype",
                      .kind = ParamKind::text,
                      .choices = {"uint8", "float32", "float16", "bfloat16"},
                      .doc = "type of the elements"},
                     boolean_info("scale", false, "true: 0 to 255 becomes 0 to 1")},
          .make = [](const ParamMap& params) { return std::make_unique<ToDtype>(params); }};
}

TransformInfo normalize_info() {
  constexpr const char* kDoc = "per channel, or one number for all";
  return {.name = "Normalize",
          .doc = "subtracts mean and divides by std, in float32",
          .params = {numbers_info("mean", {}, -1e6, 1e6, {1, 3}, kDoc), numbers_info("std", {}, 0, 1e6, {1, 3}, kDoc),
                     boolean_info("inplace", false, "accepted for torchvision's sake; makes no difference")},
          .check = check_normalize,
          .make = [](const ParamMap& params) { return std::make_unique<Normalize>(params); }};
}

}  // namespace penstock
