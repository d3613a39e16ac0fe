#include <algorithm>
#include <utility>

#include "runtime/transforms/transforms.h"

namespace penstock {

namespace {

constexpr int64_t kLargest = int64_t{1} << 30;

bool is_size(const std::pair<int64_t, int64_t>& out) {
  return out.first >= 1 && out.second >= 1 && out.first <= kLargest && out.second <= kLargest;
}

// A resize to a width and height that were computed of the image's. Windows of the result are addressed in int; beyond
// 2^30 the sample is a one-pixel sliver of a huge file.
SampleStatus add_resize(const char* transform, Size in, const std::pair<int64_t, int64_t>& out, Filter filter,
                        OpList& ops) {
  if (!is_size(out)) {
    return SampleStatus::bad(std::string(transform) + " would turn " + std::to_string(in.width) + " x " +
                             std::to_string(in.height) + " into " + std::to_string(out.first) + " x " +
                             std::to_string(out.second));
  }
  ops.resize({static_cast<int>(out.first), static_cast<int>(out.second)}, filter);
  return SampleStatus::good();
}

// The width and height whose shorter edge is this. torchvision's int(a * b / c): products stay below 2^53, so integer
// division gives the same number.
std::pair<int64_t, int64_t> size_of_edge(Size in, int64_t shorter) {
  return in.width > in.height ? std::pair{shorter * in.width / in.height, shorter}
                              : std::pair{shorter, shorter * in.height / in.width};
}

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
    return add_resize("Resize", in, target(in), filter_, ops);
  }

  std::optional<Size> fixed_size(std::optional<Size> in) const override {
    if (!by_edge_) return size_;
    if (!in) return std::nullopt;
    const std::pair<int64_t, int64_t> out = target(*in);
    if (!is_size(out)) return std::nullopt;
    return Size{static_cast<int>(out.first), static_cast<int>(out.second)};
  }

 private:
  std::pair<int64_t, int64_t> target(Size in) const noexcept {
    if (!by_edge_) return {size_.width, size_.height};
    const bool wide = in.width > in.height;
    const std::pair<int64_t, int64_t> out = size_of_edge(in, size_.width);
    const auto [new_short, new_long] = wide ? std::pair{out.second, out.first} : out;
    // By the longer edge, as it is where there is no size, or as it would have become.
    const auto bounded = [&](int64_t shorter, int64_t longer) {
      return wide ? std::pair{max_size_, max_size_ * shorter / longer}
                  : std::pair{max_size_ * shorter / longer, max_size_};
    };
    if (new_short == 0) return bounded(std::min(in.width, in.height), std::max(in.width, in.height));
    return max_size_ > 0 && new_long > max_size_ ? bounded(new_short, new_long) : out;
  }

  Size size_{};  // both are the shorter edge's where one number is given; 0: none
  bool by_edge_ = true;
  int64_t max_size_;
  Filter filter_;
};

// The three transforms below draw a sample's size, so something behind them has to fix it.
class SizeDrawn : public GeometricTransform {
 public:
  explicit SizeDrawn(const ParamMap& params) : filter_(filter_param(params, "interpolation")) {}
  std::optional<Size> fixed_size(std::optional<Size>) const override { return std::nullopt; }
  bool draws_only_cuts() const noexcept override { return false; }

 protected:
  Filter filter_;
};

[[noreturn]] void refuse_size(const char* transform, int64_t drawn) {
  throw Error(ErrorKind::usage, std::string(transform) + " draws no " + std::to_string(drawn),
              "use the draws that Pipeline::draw made for this pipeline");
}

// torchvision's RandomResize. Draws: [the shorter edge, from min_size to max_size - 1].
class RandomResize final : public SizeDrawn {
 public:
  explicit RandomResize(const ParamMap& params)
      : SizeDrawn(params), smallest_(integer_param(params, "min_size")), end_(integer_param(params, "max_size")) {}

  void draw(DrawStream& stream, Size, std::vector<int64_t>& values) const override {
    values.push_back(smallest_ + stream.below(static_cast<uint32_t>(end_ - smallest_)));
  }

  SampleStatus geometry(Size in, std::span<const int64_t> values, OpList& ops) const override {
    require_draws(values, 1, "RandomResize");
    if (values[0] < smallest_ || values[0] >= end_) refuse_size("RandomResize", values[0]);
    return add_resize("RandomResize", in, size_of_edge(in, values[0]), filter_, ops);
  }

 private:
  int64_t smallest_;
  int64_t end_;
};

// torchvision's RandomShortestSize: both edges by one factor, in double, whose products are cut off; so an edge may be
// one pixel shorter than Resize would make it. Draws: [the shorter edge].
class RandomShortestSize final : public SizeDrawn {
 public:
  explicit RandomShortestSize(const ParamMap& params)
      : SizeDrawn(params),
        sizes_(list_param(params, "min_size")),
        max_size_(is_given(params, "max_size") ? static_cast<double>(integer_param(params, "max_size")) : 0) {}

  void draw(DrawStream& stream, Size, std::vector<int64_t>& values) const override {
    values.push_back(static_cast<int64_t>(sizes_[stream.below(static_cast<uint32_t>(sizes_.size()))]));
  }

  SampleStatus geometry(Size in, std::span<const int64_t> values, OpList& ops) const override {
    require_draws(values, 1, "RandomShortestSize");
    const auto drawn = static_cast<double>(values[0]);
    if (std::find(sizes_.begin(), sizes_.end(), drawn) == sizes_.end()) refuse_size("RandomShortestSize", values[0]);
    double factor = drawn / std::min(in.width, in.height);
    if (max_size_ > 0) factor = std::min(factor, max_size_ / std::max(in.width, in.height));
    return add_resize("RandomShortestSize", in,
                      {static_cast<int64_t>(in.width * factor), static_cast<int64_t>(in.height * factor)}, filter_,
                      ops);
  }

 private:
  std::vector<double> sizes_;
  double max_size_;
};

// torchvision's ScaleJitter: the factor that fits the image into the target, times a random scale. In float, whose
// products are cut off, because there the scale is a tensor.
//
// Draws: [the scale in units of 2^-32].
class ScaleJitter final : public SizeDrawn {
 public:
  explicit ScaleJitter(const ParamMap& params)
      : SizeDrawn(params),
        target_(list_param(params, "target_size")),
        range_{list_param(params, "scale_range")[0], list_param(params, "scale_range")[1]} {}

  void draw(DrawStream& stream, Size, std::vector<int64_t>& values) const override {
    values.push_back(draw_fixed(stream, range_));
  }

  SampleStatus geometry(Size in, std::span<const int64_t> values, OpList& ops) const override {
    require_draws(values, 1, "ScaleJitter");
    const auto scale = static_cast<float>(from_fixed(values[0]));
    if (!(scale >= 0) || scale > 1e6F) refuse_size("ScaleJitter", values[0]);
    const double fitting = std::min(target_[1] / in.height, target_[0] / in.width);
    const float factor = static_cast<float>(fitting) * scale;
    const float width = static_cast<float>(in.width) * factor;
    const float height = static_cast<float>(in.height) * factor;
    return add_resize("ScaleJitter", in, {static_cast<int64_t>(width), static_cast<int64_t>(height)}, filter_, ops);
  }

 private:
  std::vector<double> target_;
  std::array<double, 2> range_;
};

std::string check_sizes(const ParamMap& params, std::string& culprit) {
  culprit = "max_size";
  return integer_param(params, "max_size") > integer_param(params, "min_size") ? "" : "must be larger than min_size";
}

ParamInfo edge_info(const char* name, const char* doc) {
  return integer_info(name, {}, 1, kMaxSide, doc);
}

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
          .params = {std::move(size), interpolation_info(),
                     integer_info("max_size", ParamValue{}, 2, kMaxSide,
                                  "bound of the longer edge, which wins over size; with size null, its length"),
                     antialias_info()},
          .check = check_max_size,
          .make = [](const ParamMap& params) { return std::make_unique<Resize>(params); }};
}

TransformInfo random_resize_info() {
  return {.name = "RandomResize",
          .doc = "resizes the whole image to a random length of its shorter edge, keeping the aspect ratio",
          .params = {edge_info("min_size", "smallest length"), edge_info("max_size", "the first length too large"),
                     interpolation_info(), antialias_info()},
          .check = check_sizes,
          .make = [](const ParamMap& params) { return std::make_unique<RandomResize>(params); }};
}

TransformInfo random_shortest_size_info() {
  return {.name = "RandomShortestSize",
          .doc = "resizes the whole image to one of several lengths of its shorter edge, keeping the aspect ratio",
          .params = {integers_info("min_size", {}, 1, kMaxSide, {},
                                   "lengths of the shorter edge to choose from: one, or a list"),
                     integer_info("max_size", ParamValue{}, 1, kMaxSide,
                                  "bound of the longer edge, which wins over min_size"),
                     interpolation_info(), antialias_info()},
          .make = [](const ParamMap& params) { return std::make_unique<RandomShortestSize>(params); }};
}

TransformInfo scale_jitter_info() {
  return {
      .name = "ScaleJitter",
      .doc = "resizes the whole image by the factor that fits it into a target, times a random scale",
      .params = {integers_info("target_size", {}, 1, kMaxSide, {2},
                               "what a scale of 1 fits the image into; as torchvision computes it, [width, height]"),
                 numbers_info("scale_range", std::vector<double>{0.1, 2.0}, 0, 1000, {2}, "[smallest, largest] scale"),
                 interpolation_info(), antialias_info()},
      .check = rising({"scale_range"}),
      .make = [](const ParamMap& params) { return std::make_unique<ScaleJitter>(params); }};
}

}  // namespace penstock
