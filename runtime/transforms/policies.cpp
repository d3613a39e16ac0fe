#include <algorithm>

#include "runtime/pixels/pixel_ops.h"
#include "runtime/transforms/draw_gamma.h"
#include "runtime/transforms/policy_ops.h"
#include "runtime/transforms/policy_tables.h"
#include "runtime/transforms/transforms.h"

namespace penstock {

namespace {

// What the four share: operations with a filter and a colour for what comes from outside.
class Policy : public PixelTransform {
 public:
  explicit Policy(const ParamMap& params)
      : filter_(filter_param(params, "interpolation")), fill_(fills_param(params)) {}

 protected:
  // One operation from its draws.
  void add(const MagnitudeTable& table, int64_t op, int64_t bin, int bins, int64_t negated, Size in, ImageRole role,
           PixelOpSink& to) const {
    if (op < 0 || op >= kPolicyOps || bin < 0 || bin >= bins) {
      throw Error(ErrorKind::usage,
                  "there is no operation " + std::to_string(op) + " with magnitude bin " + std::to_string(bin),
                  "use the draws that Pipeline::draw made for this pipeline");
    }
    const auto operation = static_cast<PolicyOp>(op);
    const double magnitude = magnitude_of(table, operation, static_cast<int>(bin), bins, negated != 0, in);
    add_op(operation, magnitude, filter_, fill_, in, role, to);
  }

 private:
  Filter filter_;
  Fills fill_;
};

constexpr int64_t kIdentity = static_cast<int64_t>(PolicyOp::identity);

// torchvision's RandAugment. Draws: for each operation [its number in PolicyOp, 1 where its magnitude is negative].
class RandAugment final : public Policy {
 public:
  explicit RandAugment(const ParamMap& params)
      : Policy(params),
        count_(static_cast<size_t>(integer_param(params, "num_ops"))),
        bin_(static_cast<int>(integer_param(params, "magnitude"))),
        bins_(static_cast<int>(integer_param(params, "num_magnitude_bins"))) {}

  void draw(DrawStream& stream, Size, std::vector<int64_t>& values) const override {
    for (size_t i = 0; i < count_; ++i) {
      const int64_t op = stream.below(14);  // all but invert
      const int64_t negated = stream.below(2);
      values.insert(values.end(), {op, negated});
    }
  }

  bool acts(std::span<const int64_t> values) const override {
    require_draws(values, 2 * count_, "RandAugment");
    for (size_t i = 0; i < values.size(); i += 2) {
      if (values[i] != kIdentity) return true;
    }
    return false;
  }

  bool list_ops(Size in, std::span<const int64_t> values, ImageRole role, PixelOpSink& to) const override {
    for (size_t i = 0; i < values.size(); i += 2) {
      add(MagnitudeTable{}, values[i], bin_, bins_, values[i + 1], in, role, to);
    }
    return true;
  }

 private:
  size_t count_;
  int bin_;
  int bins_;
};

// torchvision's TrivialAugmentWide. Draws: [the operation's number in PolicyOp, its bin, 1 where it is negative].
class TrivialAugmentWide final : public Policy {
 public:
  explicit TrivialAugmentWide(const ParamMap& params)
      : Policy(params), bins_(static_cast<int>(integer_param(params, "num_magnitude_bins"))) {}

  void draw(DrawStream& stream, Size, std::vector<int64_t>& values) const override {
    const int64_t op = stream.below(14);  // all but invert
    const int64_t bin = stream.below(static_cast<uint32_t>(bins_));
    const int64_t negated = stream.below(2);
    values.insert(values.end(), {op, bin, negated});
  }

  bool acts(std::span<const int64_t> values) const override {
    require_draws(values, 3, "TrivialAugmentWide");
    return values[0] != kIdentity;
  }

  bool list_ops(Size in, std::span<const int64_t> values, ImageRole role, PixelOpSink& to) const override {
    constexpr MagnitudeTable wide{.shear = 0.99,
                                  .translate = 32,
                                  .translate_in_pixels = true,
                                  .rotate = 135,
                                  .enhance = 0.99,
                                  .posterize_range = 6};
    add(wide, values[0], values[1], bins_, values[2], in, role, to);
    return true;
  }

 private:
  int bins_;
};

// torchvision's AutoAugment. Draws: [which of the 25 sub-policies, then for each of its two operations 1 where it
// happens and 1 where its magnitude is negative].
class AutoAugment final : public Policy {
 public:
  explicit AutoAugment(const ParamMap& params) : Policy(params) {
    const std::string& policy = text_param(params, "policy");
    policies_ = policy == "imagenet"  ? policy_tables::kImagenet
                : policy == "cifar10" ? policy_tables::kCifar10
                                      : policy_tables::kSvhn;
  }

  void draw(DrawStream& stream, Size, std::vector<int64_t>& values) const override {
    const int64_t which = stream.below(25);
    values.push_back(which);
    for (const policy_tables::PolicyEntry& entry : {policies_[which].first, policies_[which].second}) {
      values.push_back(stream.bernoulli(entry.p) ? 1 : 0);
      values.push_back(stream.below(2));
    }
  }

  bool acts(std::span<const int64_t> values) const override {
    require_draws(values, 5, "AutoAugment");
    return values[1] != 0 || values[3] != 0;
  }

  bool list_ops(Size in, std::span<const int64_t> values, ImageRole role, PixelOpSink& to) const override {
    if (values[0] < 0 || values[0] > 24) {
      throw Error(ErrorKind::usage, "AutoAugment has 25 sub-policies, and none is number " + std::to_string(values[0]),
                  "use the draws that Pipeline::draw made for this pipeline");
    }
    size_t next = 1;
    for (const policy_tables::PolicyEntry& entry : {policies_[values[0]].first, policies_[values[0]].second}) {
      const int64_t happens = values[next++];
      const int64_t negated = values[next++];
      if (happens == 0) continue;
      add(MagnitudeTable{}, static_cast<int64_t>(entry.op), entry.bin, 10, negated, in, role, to);
    }
    return true;
  }

 private:
  const policy_tables::SubPolicy* policies_ = nullptr;
};

// torchvision's AugMix: the image and several augmented copies of it, mixed with Dirichlet weights. The operations are
// those of PIL images, as everywhere here; torchvision's AugMix takes its tensor ones, also for PIL images. A mask
// stays as it is: a mixture of images has no one geometry.
//
// Draws: [weights of the image and of each chain in units of 2^-32; for each chain its depth, then for each of its
//   operations, drawn up to the largest depth: its number in PolicyOp, its bin, 1 where it is negative].
class AugMix final : public Policy {
 public:
  explicit AugMix(const ParamMap& params)
      : Policy(params),
        severity_(static_cast<int>(integer_param(params, "severity"))),
        width_(static_cast<size_t>(integer_param(params, "mixture_width"))),
        depth_(integer_param(params, "chain_depth")),
        alpha_(number_param(params, "alpha")),
        all_ops_(boolean_param(params, "all_ops")) {}

  void draw(DrawStream& stream, Size, std::vector<int64_t>& values) const override {
    const size_t start = values.size();
    values.resize(start + 1 + width_);
    for (size_t chain = 0; chain < width_; ++chain) {
      values.push_back(depth_ > 0 ? depth_ : 1 + static_cast<int64_t>(stream.below(3)));
      for (size_t i = 0; i < largest_depth(); ++i) {
        // torchvision's list without the enhancements ends with posterize, solarize, autocontrast and equalize.
        int64_t op = 1 + stream.below(all_ops_ ? 13 : 9);
        if (!all_ops_ && op > static_cast<int64_t>(PolicyOp::rotate)) op += 4;
        const int64_t bin = stream.below(static_cast<uint32_t>(severity_));
        const int64_t negated = stream.below(2);
        values.insert(values.end(), {op, bin, negated});
      }
    }
    // Beta for the image's share, Dirichlet for the chains' parts of the rest.
    const double image = draw_gamma(stream, alpha_), rest = draw_gamma(stream, alpha_);
    const double share = image + rest > 0 ? image / (image + rest) : 1;
    std::vector<double> parts(width_);
    double sum = 0;
    for (double& part : parts) sum += part = draw_gamma(stream, alpha_);
    values[start] = to_fixed(share);
    for (size_t chain = 0; chain < width_; ++chain) {
      const double part = sum > 0 ? parts[chain] / sum : 1.0 / static_cast<double>(width_);
      values[start + 1 + chain] = to_fixed(part * (1 - share));
    }
  }

  bool acts(std::span<const int64_t> values) const override {
    require_draws(values, 1 + width_ * (2 + 3 * largest_depth()), "AugMix");
    return true;
  }

  SampleStatus paint(PixelBuffer& image, std::span<const int64_t> values, ImageRole role,
                     PaintScratch& scratch) const override {
    if (role == ImageRole::mask) return SampleStatus::good();
    const size_t bytes = image.row_bytes() * static_cast<size_t>(image.height());
    take_large(bytes * sizeof(float));
    scratch.floats.resize(bytes);
    std::vector<float>& mixture = scratch.floats;
    PixelBuffer& chain_image = scratch.copy;
    const uint8_t* original = image.row(0);
    const auto share = static_cast<float>(from_fixed(values[0]));
    for (size_t i = 0; i < bytes; ++i) mixture[i] = share * static_cast<float>(original[i]);
    const size_t stride = 1 + 3 * largest_depth();
    for (size_t chain = 0; chain < width_; ++chain) {
      const std::span<const int64_t> drawn = values.subspan(1 + width_ + chain * stride, stride);
      if (drawn[0] < 1 || drawn[0] > static_cast<int64_t>(largest_depth())) {
        throw Error(ErrorKind::usage, "AugMix: a chain cannot be " + std::to_string(drawn[0]) + " deep",
                    "use the draws that Pipeline::draw made for this pipeline");
      }
      chain_image.resize(image.width(), image.height());
      std::copy(original, original + bytes, chain_image.row(0));
      Painter painter(chain_image, scratch);
      for (size_t i = 0; i < static_cast<size_t>(drawn[0]); ++i) {
        add(table(), drawn[1 + 3 * i], drawn[2 + 3 * i], 10, drawn[3 + 3 * i], {image.width(), image.height()}, role,
            painter);
      }
      const auto weight = static_cast<float>(from_fixed(values[1 + chain]));
      const uint8_t* augmented = chain_image.row(0);
      for (size_t i = 0; i < bytes; ++i) {
        const float part = weight * static_cast<float>(augmented[i]);
        mixture[i] = mixture[i] + part;
      }
    }
    uint8_t* out = image.row(0);
    for (size_t i = 0; i < bytes; ++i) out[i] = static_cast<uint8_t>(mixture[i] < 255.0F ? mixture[i] : 255.0F);
    return SampleStatus::good();
  }

 private:
  static constexpr MagnitudeTable table() { return {.translate = 1.0 / 3.0, .posterize_from = 4}; }
  size_t largest_depth() const noexcept { return depth_ > 0 ? static_cast<size_t>(depth_) : 3; }

  int severity_;
  size_t width_;
  int64_t depth_;
  double alpha_;
  bool all_ops_;
};

std::string check_magnitude(const ParamMap& params, std::string& culprit) {
  culprit = "magnitude";
  return integer_param(params, "magnitude") < integer_param(params, "num_magnitude_bins")
             ? ""
             : "must be below num_magnitude_bins";
}

// torchvision's default is None here, and 0 for the warps; both are black.
ParamInfo policy_fill_info() {
  ParamInfo info = fill_info("colour of what comes from outside: one number, or [red, green, blue]; null: black");
  info.default_value = ParamValue{};
  return info;
}

constexpr const char* kBinsDoc = "how many magnitudes there are";

}  // namespace

TransformInfo rand_augment_info() {
  return {.name = "RandAugment",
          .doc = "a number of random operations of one strength (Cubuk et al. 2019)",
          .params = {integer_info("num_ops", int64_t{2}, 0, 1000, "how many operations, one after the other"),
                     integer_info("magnitude", int64_t{9}, 0, 999, "their strength: 0 to num_magnitude_bins - 1"),
                     integer_info("num_magnitude_bins", int64_t{31}, 1, 1000, kBinsDoc),
                     warp_interpolation_info("nearest"), policy_fill_info(), mask_fill_info()},
          .check = check_magnitude,
          .make = [](const ParamMap& params) { return std::make_unique<RandAugment>(params); }};
}

TransformInfo auto_augment_info() {
  return {.name = "AutoAugment",
          .doc = "one of 25 pairs of operations, learned on a data set (Cubuk et al. 2018)",
          .params = {{.name = "policy",
                      .kind = ParamKind::text,
                      .default_value = std::string("imagenet"),
                      .choices = {"imagenet", "cifar10", "svhn"},
                      .doc = "the data set whose pairs are taken"},
                     warp_interpolation_info("nearest"),
                     policy_fill_info(),
                     mask_fill_info()},
          .make = [](const ParamMap& params) { return std::make_unique<AutoAugment>(params); }};
}

TransformInfo trivial_augment_wide_info() {
  return {.name = "TrivialAugmentWide",
          .doc = "one random operation of random strength (Mueller and Hutter 2021)",
          .params = {integer_info("num_magnitude_bins", int64_t{31}, 1, 1000, kBinsDoc),
                     warp_interpolation_info("nearest"), policy_fill_info(), mask_fill_info()},
          .make = [](const ParamMap& params) { return std::make_unique<TrivialAugmentWide>(params); }};
}

TransformInfo aug_mix_info() {
  return {
      .name = "AugMix",
      .doc = "a mixture of the image and of several augmented copies (Hendrycks et al. 2020)",
      .params = {integer_info("severity", int64_t{3}, 1, 10, "how many of 10 magnitudes may be drawn"),
                 integer_info("mixture_width", int64_t{3}, 1, 100, "how many augmented copies"),
                 integer_info("chain_depth", int64_t{-1}, -1, 100, "operations on each; 0 or less: 1 to 3, at random"),
                 number_info("alpha", 1.0, 1e-3, 1e6, "parameter of the weights' distributions"),
                 boolean_info("all_ops", true, "also brightness, color, contrast and sharpness"),
                 warp_interpolation_info("bilinear"), policy_fill_info()},
      .make = [](const ParamMap& params) { return std::make_unique<AugMix>(params); }};
}

}  // namespace penstock
