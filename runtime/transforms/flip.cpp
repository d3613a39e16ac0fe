#include "runtime/transforms/transforms.h"

namespace penstock {

namespace {

// torchvision's RandomHorizontalFlip and RandomVerticalFlip. Draws: [1] when it flips, else [0].
class RandomFlip final : public GeometricTransform {
 public:
  RandomFlip(OpKind axis, double p) : axis_(axis), p_(p) {}

  void draw(DrawStream& stream, Size, std::vector<int64_t>& values) const override {
    values.push_back(stream.bernoulli(p_) ? 1 : 0);
  }

  SampleStatus geometry(Size, std::span<const int64_t> values, OpList& ops) const override {
    require_draws(values, 1, "RandomFlip");
    if (values[0] != 0 && values[0] != 1) {
      throw Error(ErrorKind::usage, "a flip draws 0 or 1, not " + std::to_string(values[0]));
    }
    if (values[0] == 1) {
      axis_ == OpKind::flip_horizontal ? ops.flip_horizontal() : ops.flip_vertical();
    }
    return SampleStatus::good();
  }

  std::optional<OpKind> flips() const noexcept override { return axis_; }

 private:
  OpKind axis_;
  double p_;
};

TransformInfo flip_info(const char* name, const char* doc, OpKind axis) {
  return {
      .name = name,
      .doc = doc,
      .params = {probability_info(0.5, "probability of the flip")},
      .make = [axis](const ParamMap& params) { return std::make_unique<RandomFlip>(axis, number_param(params, "p")); }};
}

}  // namespace

TransformInfo random_horizontal_flip_info() {
  return flip_info("RandomHorizontalFlip", "mirrors left and right with probability p", OpKind::flip_horizontal);
}

TransformInfo random_vertical_flip_info() {
  return flip_info("RandomVerticalFlip", "mirrors top and bottom with probability p", OpKind::flip_vertical);
}

}  // namespace penstock
