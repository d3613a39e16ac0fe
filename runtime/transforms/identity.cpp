#include "runtime/transforms/transforms.h"

namespace penstock {

namespace {

// torchvision's Identity; and its RGB, which makes three channels of one: decoders here always give three. So pipelines
// that name them need not be rewritten. Draws nothing, and costs nothing.
class Unchanged final : public GeometricTransform {
 public:
  explicit Unchanged(const char* name) : name_(name) {}

  SampleStatus geometry(Size, std::span<const int64_t> values, OpList&) const override {
    require_draws(values, 0, name_);
    return SampleStatus::good();
  }

 private:
  const char* name_;
};

}  // namespace

TransformInfo identity_info() {
  return {.name = "Identity", .doc = "leaves the image as it is", .params = {}, .make = [](const ParamMap&) {
            return std::make_unique<Unchanged>("Identity");
          }};
}

TransformInfo rgb_info() {
  return {.name = "RGB",
          .doc = "leaves the image as it is: every image has three channels already, grey files three equal ones",
          .params = {},
          .make = [](const ParamMap&) { return std::make_unique<Unchanged>("RGB"); }};
}

}  // namespace penstock
