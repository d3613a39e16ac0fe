#include <functional>
#include <utility>

#include "runtime/pixels/pixel_ops.h"
#include "runtime/transforms/transforms.h"

namespace penstock {

namespace {

// An operation that is fixed but for whether it happens. Draws: [1] when it does, else [0].
class RandomColour final : public PixelTransform {
 public:
  RandomColour(const char* name, double p, PixelOp operation) : name_(name), p_(p), operation_(std::move(operation)) {}

  bool colour_only() const noexcept override { return true; }

  void draw(DrawStream& stream, Size, std::vector<int64_t>& values) const override {
    values.push_back(stream.bernoulli(p_) ? 1 : 0);
  }

  bool acts(std::span<const int64_t> values) const override {
    require_draws(values, 1, name_);
    return values[0] != 0;
  }

  bool list_ops(Size, std::span<const int64_t>, ImageRole role, PixelOpSink& to) const override {
    if (role == ImageRole::image) to.add(operation_);
    return true;
  }

 private:
  const char* name_;
  double p_;
  PixelOp operation_;
};

// torchvision's Grayscale. Draws nothing.
class Grayscale final : public PixelTransform {
 public:
  bool colour_only() const noexcept override { return true; }

  bool acts(std::span<const int64_t> values) const override {
    require_draws(values, 0, "Grayscale");
    return true;
  }

  bool list_ops(Size, std::span<const int64_t>, ImageRole role, PixelOpSink& to) const override {
    if (role == ImageRole::image) to.add(GreyOp{});
    return true;
  }
};

// The channels that become red, green and blue, of three draws.
ChannelOrder order_of(std::span<const int64_t> values, const char* transform) {
  ChannelOrder from{};
  int seen = 0;
  for (size_t c = 0; c < 3; ++c) {
    if (values[c] < 0 || values[c] > 2 || (seen >> values[c] & 1) != 0) {
      throw Error(ErrorKind::usage, std::string(transform) + ": these values are no order of the channels",
                  "use the draws that Pipeline::draw made for this pipeline");
    }
    seen |= 1 << values[c];
    from[c] = static_cast<uint8_t>(values[c]);
  }
  return from;
}

// torchvision's RandomChannelPermutation. Draws: [the channels that become red, green and blue].
class RandomChannelPermutation final : public PixelTransform {
 public:
  bool colour_only() const noexcept override { return true; }

  void draw(DrawStream& stream, Size, std::vector<int64_t>& values) const override {
    int64_t order[3];
    stream.permutation(order, 3);
    values.insert(values.end(), std::begin(order), std::end(order));
  }

  bool acts(std::span<const int64_t> values) const override {
    require_draws(values, 3, "RandomChannelPermutation");
    return order_of(values, "RandomChannelPermutation") != ChannelOrder{0, 1, 2};
  }

  bool list_ops(Size, std::span<const int64_t> values, ImageRole role, PixelOpSink& to) const override {
    if (role == ImageRole::image) to.add(PermuteOp{order_of(values, "RandomChannelPermutation")});
    return true;
  }
};

// Brightness, contrast, saturation or hue (0 to 3) changed by a factor.
void add_adjustment(size_t operation, double drawn, PixelOpSink& to) {
  const auto factor = static_cast<float>(drawn);
  switch (operation) {
    case 0: to.add(TableOp{brightness_table(factor)}); break;
    case 1: to.add(ContrastOp{factor}); break;
    case 2: to.add(SaturationOp{factor}); break;
    default: to.add(HueOp{hue_shift(drawn)});
  }
}

// torchvision's ColorJitter.
//
// Draws: [order of the four operations (0 brightness, 1 contrast, 2 saturation, 3 hue), then their four factors in
//   units of 2^-32; 0 for one that the parameters leave out].
// Draw numbers: 0 to 2 the order, 3 to 6 the factors.
class ColorJitter final : public PixelTransform {
 public:
  using Range = std::optional<std::array<double, 2>>;

  explicit ColorJitter(const ParamMap& params) {
    for (size_t i = 0; i < 4; ++i) range_[i] = range_of(params, i);
  }

  static constexpr const char* kNames[4] = {"brightness", "contrast", "saturation", "hue"};

  bool colour_only() const noexcept override { return true; }

  void draw(DrawStream& stream, Size, std::vector<int64_t>& values) const override {
    int64_t order[4];
    stream.permutation(order, 4);
    values.insert(values.end(), std::begin(order), std::end(order));
    for (const Range& range : range_) {
      const int64_t factor = draw_fixed(stream, range.value_or(std::array<double, 2>{0, 0}));
      values.push_back(range ? factor : 0);
    }
  }

  bool acts(std::span<const int64_t> values) const override {
    require_draws(values, 8, "ColorJitter");
    return range_[0] || range_[1] || range_[2] || range_[3];
  }

  bool list_ops(Size, std::span<const int64_t> values, ImageRole role, PixelOpSink& to) const override {
    if (role == ImageRole::mask) return true;
    for (size_t i = 0; i < 4; ++i) {
      const int64_t operation = values[i];
      if (operation < 0 || operation > 3) {
        throw Error(ErrorKind::usage, "ColorJitter has no operation " + std::to_string(operation),
                    "use the draws that Pipeline::draw made for this pipeline");
      }
      if (!range_[static_cast<size_t>(operation)]) continue;
      add_adjustment(static_cast<size_t>(operation), from_fixed(values[4 + static_cast<size_t>(operation)]), to);
    }
    return true;
  }

  // What torchvision makes of a parameter: v is center - v to center + v, below 0 cut off but for the hue. Absent where
  // nothing would change.
  static Range range_of(const ParamMap& params, size_t operation) {
    if (!is_given(params, kNames[operation])) return std::nullopt;
    const std::vector<double>& given = list_param(params, kNames[operation]);
    const bool hue = operation == 3;
    const double center = hue ? 0 : 1;
    std::array<double, 2> range{given.front(), given.back()};
    if (given.size() == 1) {
      range = {center - given[0], center + given[0]};
      if (!hue && range[0] < 0) range[0] = 0;
    }
    if (range[0] == center && range[1] == center) return std::nullopt;
    return range;
  }

 private:
  std::array<Range, 4> range_;
};

std::string check_jitter(const ParamMap& params, std::string& culprit) {
  for (size_t i = 0; i < 4; ++i) {
    culprit = ColorJitter::kNames[i];
    if (!is_given(params, culprit)) continue;
    const std::vector<double>& given = list_param(params, culprit);
    if (given.size() == 1 && given[0] < 0) return "a single number must not be negative";
    const ColorJitter::Range range = ColorJitter::range_of(params, i);
    if (!range) continue;
    if ((*range)[0] > (*range)[1]) return "must be [smaller, larger]";
    if (i < 3 && (*range)[0] < 0) return "factors must not be negative";
    if (i == 3 && ((*range)[0] < -0.5 || (*range)[1] > 0.5)) return "must lie within -0.5 to 0.5";
  }
  return {};
}

// torchvision's RandomPhotometricDistort.
//
// Draws: [of brightness, contrast, saturation and hue each: 1 where it changes, else 0, and its factor in units of
//   2^-32; 1 where contrast changes before saturation and hue, 0 where behind them; 1 where channels are permuted, else
//   0; the channels that become red, green and blue].
// Draw numbers: 2 i and 2 i + 1 of operation i, 8 contrast's place, 9 whether channels are permuted, 10 and 11 how.
class RandomPhotometricDistort final : public PixelTransform {
 public:
  explicit RandomPhotometricDistort(const ParamMap& params) : p_(number_param(params, "p")) {
    for (size_t i = 0; i < 4; ++i) {
      const std::vector<double>& given = list_param(params, ColorJitter::kNames[i]);
      range_[i] = {given[0], given[1]};
    }
  }

  bool colour_only() const noexcept override { return true; }

  void draw(DrawStream& stream, Size, std::vector<int64_t>& values) const override {
    for (const std::array<double, 2>& range : range_) {
      values.push_back(stream.bernoulli(p_) ? 1 : 0);
      values.push_back(draw_fixed(stream, range));
    }
    values.push_back(stream.bernoulli(0.5) ? 1 : 0);
    values.push_back(stream.bernoulli(p_) ? 1 : 0);
    int64_t order[3];
    stream.permutation(order, 3);
    values.insert(values.end(), std::begin(order), std::end(order));
  }

  bool acts(std::span<const int64_t> values) const override {
    require_draws(values, 13, kName);
    return values[0] != 0 || values[2] != 0 || values[4] != 0 || values[6] != 0 || permutes(values);
  }

  bool list_ops(Size, std::span<const int64_t> values, ImageRole role, PixelOpSink& to) const override {
    if (role == ImageRole::mask) return true;
    constexpr size_t kContrast = 1;
    const auto adjust = [&](size_t operation) {
      if (values[2 * operation] != 0) add_adjustment(operation, from_fixed(values[2 * operation + 1]), to);
    };
    const bool contrast_first = values[8] != 0;
    adjust(0);
    if (contrast_first) adjust(kContrast);
    adjust(2);
    adjust(3);
    if (!contrast_first) adjust(kContrast);
    if (permutes(values)) to.add(PermuteOp{order_of(values.subspan(10), kName)});
    return true;
  }

 private:
  static constexpr const char* kName = "RandomPhotometricDistort";

  static bool permutes(std::span<const int64_t> values) {
    return values[9] != 0 && order_of(values.subspan(10), kName) != ChannelOrder{0, 1, 2};
  }

  double p_;
  std::array<std::array<double, 2>, 4> range_{};
};

std::string check_grayscale(const ParamMap& params, std::string& culprit) {
  if (integer_param(params, "num_output_channels") == 3) return {};
  culprit = "num_output_channels";
  return "only 3 is supported: samples have three channels";
}

TransformInfo colour_info(const char* name, const char* doc, double p, std::vector<ParamInfo> params,
                          std::function<PixelOp(const ParamMap&)> operation) {
  params.push_back(probability_info(p, "probability that the image changes"));
  return {.name = name,
          .doc = doc,
          .params = std::move(params),
          .make = [name, operation = std::move(operation)](const ParamMap& given) {
            return std::make_unique<RandomColour>(name, number_param(given, "p"), operation(given));
          }};
}

}  // namespace

TransformInfo grayscale_info() {
  return {.name = "Grayscale",
          .doc = "makes the three channels the image's luma",
          .params = {integer_info("num_output_channels", int64_t{3}, 1, 3,
                                  "only 3, the default: samples have three channels, which become equal (torchvision's "
                                  "default, 1, leaves one)")},
          .check = check_grayscale,
          .make = [](const ParamMap&) { return std::make_unique<Grayscale>(); }};
}

TransformInfo random_grayscale_info() {
  return colour_info("RandomGrayscale", "makes the three channels the image's luma with probability p", 0.1, {},
                     [](const ParamMap&) { return GreyOp{}; });
}

TransformInfo random_channel_permutation_info() {
  return {.name = "RandomChannelPermutation",
          .doc = "puts the three channels in a random order",
          .params = {},
          .make = [](const ParamMap&) { return std::make_unique<RandomChannelPermutation>(); }};
}

TransformInfo random_invert_info() {
  return colour_info("RandomInvert", "makes the negative with probability p", 0.5, {},
                     [](const ParamMap&) { return TableOp{invert_table()}; });
}

TransformInfo random_posterize_info() {
  return colour_info("RandomPosterize", "keeps the highest bits of each byte with probability p", 0.5,
                     {integer_info("bits", {}, 0, 8, "how many bits are kept")}, [](const ParamMap& params) {
                       return TableOp{posterize_table(static_cast<int>(integer_param(params, "bits")))};
                     });
}

TransformInfo random_solarize_info() {
  return colour_info(
      "RandomSolarize", "inverts bright bytes with probability p", 0.5,
      {{.name = "threshold", .kind = ParamKind::number, .doc = "bytes (0 to 255) at or above it are inverted"}},
      [](const ParamMap& params) { return TableOp{solarize_table(number_param(params, "threshold"))}; });
}

TransformInfo random_adjust_sharpness_info() {
  return colour_info(
      "RandomAdjustSharpness", "blurs or sharpens with probability p", 0.5,
      {number_info("sharpness_factor", {}, 0, 1e6, "0 is smoothed, 1 the image, 2 twice as sharp")},
      [](const ParamMap& params) { return SharpnessOp{static_cast<float>(number_param(params, "sharpness_factor"))}; });
}

TransformInfo random_autocontrast_info() {
  return colour_info("RandomAutocontrast", "stretches each channel to 0 to 255 with probability p", 0.5, {},
                     [](const ParamMap&) { return AutocontrastOp{}; });
}

TransformInfo random_equalize_info() {
  return colour_info("RandomEqualize", "evens out each channel's histogram with probability p", 0.5, {},
                     [](const ParamMap&) { return EqualizeOp{}; });
}

TransformInfo color_jitter_info() {
  return {.name = "ColorJitter",
          .doc = "changes brightness, contrast, saturation and hue, in random order",
          .params = {numbers_info("brightness", ParamValue{}, 0, 1e6, {1, 2},
                                  "v: factors 1 - v to 1 + v; or [smallest, largest]"),
                     numbers_info("contrast", ParamValue{}, 0, 1e6, {1, 2},
                                  "v: factors 1 - v to 1 + v; or [smallest, largest]"),
                     numbers_info("saturation", ParamValue{}, 0, 1e6, {1, 2},
                                  "v: factors 1 - v to 1 + v; or [smallest, largest]"),
                     numbers_info("hue", ParamValue{}, -0.5, 1e6, {1, 2},
                                  "v: turns of -v to v, at most 0.5; or [smallest, largest]")},
          .check = check_jitter,
          .make = [](const ParamMap& params) { return std::make_unique<ColorJitter>(params); }};
}

TransformInfo random_photometric_distort_info() {
  return {
      .name = "RandomPhotometricDistort",
      .doc = "changes brightness, contrast, saturation, hue and the order of channels, each with probability p",
      .params = {numbers_info("brightness", std::vector<double>{0.875, 1.125}, 0, 1e6, {2},
                              "[smallest, largest] factor"),
                 numbers_info("contrast", std::vector<double>{0.5, 1.5}, 0, 1e6, {2}, "[smallest, largest] factor"),
                 numbers_info("saturation", std::vector<double>{0.5, 1.5}, 0, 1e6, {2}, "[smallest, largest] factor"),
                 numbers_info("hue", std::vector<double>{-0.05, 0.05}, -0.5, 0.5, {2}, "[smallest, largest] turn"),
                 probability_info(0.5, "probability of each change")},
      .check = rising({"brightness", "contrast", "saturation", "hue"}),
      .make = [](const ParamMap& params) { return std::make_unique<RandomPhotometricDistort>(params); }};
}

}  // namespace penstock
