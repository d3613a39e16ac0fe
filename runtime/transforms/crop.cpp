#include <algorithm>
#include <limits>
#include <utility>

#include "runtime/pixels/border.h"
#include "runtime/pixels/pixel_ops.h"
#include "runtime/transforms/transforms.h"

namespace penstock {

namespace {

constexpr const char* kPaddingDoc = "colour of constant padding: one number, or [red, green, blue]";

// torchvision's CenterCrop: an image that is too small is first padded with black, one more row or column at the end
// when the difference is odd. Draws nothing.
class CenterCrop final : public GeometricTransform {
 public:
  explicit CenterCrop(const ParamMap& params) : size_(size_param(params, "size")) {}

  SampleStatus geometry(Size in, std::span<const int64_t> values, OpList& ops) const override {
    require_draws(values, 0, "CenterCrop");
    ops.crop({start(in.width, size_.width), start(in.height, size_.height), size_.width, size_.height});
    return SampleStatus::good();
  }

  std::optional<Size> fixed_size(std::optional<Size>) const override { return size_; }

 private:
  static int start(int in, int out) noexcept {
    if (out > in) return -((out - in) / 2);
    return static_cast<int>(round_half_even((in - out) / 2.0));
  }

  Size size_;
};

// [left, top, right, bottom] of one, two or four numbers, as torchvision reads them.
std::array<int, 4> padding_param(const ParamMap& params) {
  const std::vector<double>& given = list_param(params, "padding");
  std::array<int, 4> padding{};
  for (size_t side = 0; side < 4; ++side) padding[side] = static_cast<int>(given[side % given.size()]);
  return padding;
}

// torchvision's Pad. Draws nothing. A constant border is geometry; the others continue the image, which is then made
// whole first.
template <class Kind>
class Pad : public Kind {
 public:
  explicit Pad(const ParamMap& params) : padding_(padding_param(params)) {}

  std::optional<Size> fixed_size(std::optional<Size> in) const override {
    return in ? std::optional(padded(*in)) : std::nullopt;
  }

 protected:
  // Sides that no image may have stay just that.
  Size padded(Size in) const noexcept {
    const auto side = [](int64_t a, int64_t b, int64_t c) {
      return static_cast<int>(std::min<int64_t>(a + b + c, std::numeric_limits<int>::max()));
    };
    return {side(in.width, padding_[0], padding_[2]), side(in.height, padding_[1], padding_[3])};
  }

  std::array<int, 4> padding_;
};

class ConstantPad final : public Pad<GeometricTransform> {
 public:
  explicit ConstantPad(const ParamMap& params) : Pad(params), fill_(fills_param(params)) {}

  SampleStatus geometry(Size in, std::span<const int64_t> values, OpList& ops) const override {
    require_draws(values, 0, "Pad");
    const Size out = padded(in);
    ops.crop({-padding_[0], -padding_[1], out.width, out.height}, fill_);
    return SampleStatus::good();
  }

 private:
  Fills fill_;
};

class BorderPad final : public Pad<PixelTransform> {
 public:
  explicit BorderPad(const ParamMap& params) : Pad(params), border_(border_of(text_param(params, "padding_mode"))) {}

  SampleStatus size_after(Size in, std::span<const int64_t>, Size& out) const override {
    out = padded(in);
    return SampleStatus::good();
  }

  bool acts(std::span<const int64_t> values) const override {
    require_draws(values, 0, "Pad");
    return padded({}) != Size{};
  }

  bool list_ops(Size in, std::span<const int64_t>, ImageRole, PixelOpSink& to) const override {
    const Size out = padded(in);
    BorderOp op;
    for (int x = 0; x < out.width; ++x) op.columns.push_back(border_index(x - padding_[0], in.width, border_));
    for (int y = 0; y < out.height; ++y) op.rows.push_back(border_index(y - padding_[1], in.height, border_));
    to.add(op);
    return true;
  }

 private:
  Border border_;
};

// torchvision's FiveCrop and TenCrop: the four corners and the middle; then the same of the mirrored image. Draw
// nothing.
class CornerCrops final : public ViewsTransform {
 public:
  explicit CornerCrops(const ParamMap& params)
      : size_(size_param(params, "size")),
        mirrored_(params.contains("vertical_flip")),
        vertical_(mirrored_ && boolean_param(params, "vertical_flip")) {}
  int views() const noexcept override { return mirrored_ ? 10 : 5; }

  std::string misfit(Size in) const override {
    if (size_.width <= in.width && size_.height <= in.height) return {};
    return (mirrored_ ? "TenCrop of " : "FiveCrop of ") + std::to_string(size_.width) + " x " +
           std::to_string(size_.height) + " does not fit into " + std::to_string(in.width) + " x " +
           std::to_string(in.height);
  }

  SampleStatus view(Size in, int number, OpList& ops) const override {
    if (std::string why = misfit(in); !why.empty()) return SampleStatus::bad(std::move(why));
    if (number >= 5) vertical_ ? ops.flip_vertical() : ops.flip_horizontal();
    const int right = in.width - size_.width;
    const int bottom = in.height - size_.height;
    const int middle_x = static_cast<int>(round_half_even(right / 2.0));
    const int middle_y = static_cast<int>(round_half_even(bottom / 2.0));
    const std::pair<int, int> corners[5] = {{0, 0}, {right, 0}, {0, bottom}, {right, bottom}, {middle_x, middle_y}};
    const auto [x, y] = corners[number % 5];
    ops.crop({x, y, size_.width, size_.height});
    return SampleStatus::good();
  }

  std::optional<Size> fixed_size(std::optional<Size>) const override { return size_; }

 private:
  Size size_;
  bool mirrored_;
  bool vertical_;
};

// torchvision's RandomCrop.
//
// Draws: [x, y] of the box's corner in the input's pixels, before padding: negative where it starts in the padding.
// Draw numbers: 0 is y, 1 is x. An image that is too small gets [0, 0] and a bad status.
template <class Kind>
class RandomCrop : public Kind {
 public:
  explicit RandomCrop(const ParamMap& params)
      : size_(size_param(params, "size")), pad_if_needed_(boolean_param(params, "pad_if_needed")) {
    if (is_given(params, "padding")) padding_ = padding_param(params);
  }

  void draw(DrawStream& stream, Size in, std::vector<int64_t>& values) const override {
    const Box room = padded(in);
    const int rows = room.height - size_.height + 1;
    const int columns = room.width - size_.width + 1;
    if (rows < 1 || columns < 1) {
      values.insert(values.end(), {0, 0});
      return;
    }
    const int64_t y = stream.below(static_cast<uint32_t>(rows));
    const int64_t x = stream.below(static_cast<uint32_t>(columns));
    values.insert(values.end(), {room.x + x, room.y + y});
  }

  std::string misfit(Size in) const override {
    const Box room = padded(in);
    if (room.width >= size_.width && room.height >= size_.height) return {};
    return "RandomCrop of " + std::to_string(size_.width) + " x " + std::to_string(size_.height) +
           " does not fit into " + std::to_string(room.width) + " x " + std::to_string(room.height) +
           " (pad_if_needed: true would pad)";
  }

  std::optional<Size> fixed_size(std::optional<Size>) const override { return size_; }

 protected:
  SampleStatus check(Size in, std::span<const int64_t> values) const {
    require_draws(values, 2, "RandomCrop");
    if (std::string why = misfit(in); !why.empty()) return SampleStatus::bad(std::move(why));
    const Box room = padded(in);
    if (values[0] < room.x || values[0] > room.x + room.width - size_.width || values[1] < room.y ||
        values[1] > room.y + room.height - size_.height) {
      throw Error(ErrorKind::usage, "RandomCrop: the drawn corner lies outside the padded image",
                  "use the draws that Pipeline::draw made for this sample");
    }
    return SampleStatus::good();
  }

  // The padded image in the input's coordinates. pad_if_needed pads both sides by the whole difference, as torchvision.
  Box padded(Size in) const noexcept {
    Box room{-padding_[0], -padding_[1], in.width + padding_[0] + padding_[2], in.height + padding_[1] + padding_[3]};
    if (pad_if_needed_ && room.width < size_.width) {
      const int difference = size_.width - room.width;
      room.x -= difference;
      room.width += 2 * difference;
    }
    if (pad_if_needed_ && room.height < size_.height) {
      const int difference = size_.height - room.height;
      room.y -= difference;
      room.height += 2 * difference;
    }
    return room;
  }

  Size size_;
  bool pad_if_needed_;
  std::array<int, 4> padding_{};  // left, top, right, bottom
};

class ConstantRandomCrop final : public RandomCrop<GeometricTransform> {
 public:
  explicit ConstantRandomCrop(const ParamMap& params) : RandomCrop(params), fill_(fills_param(params)) {}

  SampleStatus geometry(Size in, std::span<const int64_t> values, OpList& ops) const override {
    if (SampleStatus status = check(in, values); !status.ok()) return status;
    ops.crop({static_cast<int>(values[0]), static_cast<int>(values[1]), size_.width, size_.height}, fill_);
    return SampleStatus::good();
  }

 private:
  Fills fill_;
};

// A border that continues the image needs its pixels, wherever the box lies.
class BorderRandomCrop final : public RandomCrop<PixelTransform> {
 public:
  explicit BorderRandomCrop(const ParamMap& params)
      : RandomCrop(params), border_(border_of(text_param(params, "padding_mode"))) {}

  SampleStatus size_after(Size in, std::span<const int64_t> values, Size& out) const override {
    out = size_;
    return check(in, values);
  }

  bool list_ops(Size in, std::span<const int64_t> values, ImageRole, PixelOpSink& to) const override {
    to.add(BorderOp{cut(in.width, size_.width, padding_[0], padding_[2], static_cast<int>(values[0])),
                    cut(in.height, size_.height, padding_[1], padding_[3], static_cast<int>(values[1]))});
    return true;
  }

 private:
  // One axis of the box. torchvision pads by `padding` first, and what comes of that again where it is still too small.
  std::vector<int> cut(int in, int out, int before, int after, int start) const {
    const int once = in + before + after;
    std::vector<int> indices;
    for (int i = start; i < start + out; ++i) {
      indices.push_back(border_index(border_index(i + before, once, border_) - before, in, border_));
    }
    return indices;
  }

  Border border_;
};

// By what is padded with.
template <class Constant, class Continued>
Transform of_padding_mode(const ParamMap& params) {
  if (border_of(text_param(params, "padding_mode")) == Border::constant) return std::make_unique<Constant>(params);
  return std::make_unique<Continued>(params);
}

ParamInfo padding_info() {
  return integers_info("padding", {}, 0, kMaxSide, {1, 2, 4},
                       "pixels added: one number; [left and right, top and bottom]; or [left, top, right, bottom]");
}

ParamInfo padding_mode_info() {
  return {.name = "padding_mode",
          .kind = ParamKind::text,
          .default_value = std::string("constant"),
          .choices = {"constant", "edge", "reflect", "symmetric"},
          .doc = "what is padded with: fill; the border's pixels; the image mirrored without or with its border"};
}

ParamInfo optional(ParamInfo info) {
  info.default_value = ParamValue{};
  return info;
}

}  // namespace

TransformInfo center_crop_info() {
  return {.name = "CenterCrop",
          .doc = "crops the middle; a smaller image is padded with black",
          .params = {size_info("size of the result: one number, or [height, width]")},
          .make = [](const ParamMap& params) { return std::make_unique<CenterCrop>(params); }};
}

TransformInfo random_crop_info() {
  return {.name = "RandomCrop",
          .doc = "crops a box of fixed size at a random place, after padding",
          .params = {size_info("size of the result: one number, or [height, width]"), optional(padding_info()),
                     boolean_info("pad_if_needed", false,
                                  "pad images that are smaller than size, instead of calling them bad"),
                     fill_info(kPaddingDoc), padding_mode_info(), mask_fill_info()},
          .make = of_padding_mode<ConstantRandomCrop, BorderRandomCrop>};
}

TransformInfo pad_info() {
  return {.name = "Pad",
          .doc = "adds a border",
          .params = {padding_info(), fill_info(kPaddingDoc), padding_mode_info(), mask_fill_info()},
          .make = of_padding_mode<ConstantPad, BorderPad>};
}

TransformInfo five_crop_info() {
  return {.name = "FiveCrop",
          .doc =
              "the four corners and the middle: five images [5, 3, h, w] of a sample; nothing but ToDtype and "
              "Normalize after it",
          .params = {size_info("size of each: one number, or [height, width]")},
          .make = [](const ParamMap& params) { return std::make_unique<CornerCrops>(params); }};
}

TransformInfo ten_crop_info() {
  return {.name = "TenCrop",
          .doc = "FiveCrop, and FiveCrop of the mirrored image: ten images [10, 3, h, w] of a sample",
          .params = {size_info("size of each: one number, or [height, width]"),
                     boolean_info("vertical_flip", false, "mirror top and bottom instead of left and right")},
          .make = [](const ParamMap& params) { return std::make_unique<CornerCrops>(params); }};
}

}  // namespace penstock
