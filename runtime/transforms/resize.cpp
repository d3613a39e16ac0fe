#include <utility>

#include "runtime/transforms/transforms.h"

namespace penstock {

namespace {

// torchvision's Resize: one number is the size of the shorter edge, two are [height, width]; null leaves max_size, the
// size of the longer edge. Draws nothing.
class Resize final : public GeometricTransform {
 public:
  explicit Resize(const ParamMap& params)
      : max_size_(is_given(params, "max_size") ? integer_param(params, "max_size") : 0),
        filter_(filter_param(params, "interpolation")) {
    if (!is_given(params, "size")) return;
    size_ = size_param(params, "size");
    by_edge_ = list_param(params, "size").size() == 1;
  }

  SampleStatus geometry(Size in, std::span<const int64_t> values, OpList& ops) const override {
    require_draws(values, 0, "Resize");
    const std::pair<int64_t, int64_t> out = target(in);
    // Windows of the result are addressed in int; beyond 2^30 the sample is a one-pixel sliver of a huge file.
    if (out.first < 1 || out.second < 1 || out.first > kLargest || out.second > kLargest) {
      return SampleStatus::bad("Resize would turn " + std::to_string(in.width) + " x " + std::to_string(in.height) +
                               " into " + std::to_string(out.first) + " x " + std::to_string(out.second));
    }
    ops.resize({static_cast<int>(out.first), static_cast<int>(out.second)}, filter_);
    return SampleStatus::good();
  }

  std::optional<Size> fixed_size(std::optional<Size> in) const override {
    if (!by_edge_) return size_;
    if (!in) return std::nullopt;
    const std::pair<int64_t, int64_t> out = target(*in);
    if (out.first < 1 || out.second < 1 || out.first > kLargest || out.second > kLargest) return std::nullopt;
    return Size{static_cast<int>(out.first), static_cast<int>(out.second)};
  }

 private:
  static constexpr int64_t kLargest = int64_t{1} << 30;

  // torchvision's int(a * b / c): products stay below 2^53, so integer division gives the same number.
  std::pair<int64_t, int64_t> target(Size in) const noexcept {
    if (!by_edge_) return {size_.width, size_.height};
    const bool wide = in.width > in.height;
    const int64_t shorter = wide ? in.height : in.width;
    const int64_t longer = wide ? in.width : in.height;
    int64_t new_short = size_.width;
    int64_t new_long = new_short * longer / shorter;
    if (new_short == 0) {
      new_short = max_size_ * shorter / longer;
      new_long = max_size_;
    } else if (max_size_ > 0 && new_long > max_size_) {
      new_short = max_size_ * new_short / new_long;
      new_long = max_size_;
    }
    return wide ? std::pair{new_long, new_short} : std::pair{new_short, new_long};
  }

  Size size_{};  // both are the shorter edge's where one number is given; 0: none
  bool by_edge_ = true;
  int64_t max_size_;
  Filter filter_;
};

std::string check_max_size(const ParamMap& params, std::string& culprit) {
  if (!is_given(params, "size")) {
    culprit = "size";
    return is_given(params, "max_size") ? "" : "null leaves the size to max_size, the longer edge, which is not given";
  }
  if (is_given(params, "max_size")) {
    culprit = "max_size";
    const std::vector<double>& size = list_param(params, "size");
    if (size.size() != 1) return "is only for a size of one number, the shorter edge";
    if (static_cast<double>(integer_param(params, "max_size")) <= size[0]) return "must be larger than size";
  }
  return {};
}

}  // namespace

TransformInfo resize_info() {
  ParamInfo size = size_info(
      "one number: the shorter edge, keeping the aspect ratio; or [height, width]; null: max_size is the longer "
      "edge's");
  size.nullable = true;
  return {.name = "Resize",
          .doc = "resizes the whole image",
          .params = {std::move(size),
                     interpolation_info(),
                     {.name = "max_size",
                      .kind = ParamKind::integer,
                      .default_value = ParamValue{},
                      .minimum = 2,
                      .maximum = kMaxSide,
                      .doc = "bound of the longer edge, which wins over size; with size null, its length"},
                     antialias_info()},
          .check = check_max_size,
          .make = [](const ParamMap& params) { return std::make_unique<Resize>(params); }};
}

}  // namespace penstock
