#include <algorithm>

#include "runtime/augment/transforms.h"

namespace penstock {

namespace {

// torchvision's CenterCrop: an image that is too small is first padded with black, one more row or column at the end
// when the difference is odd. Draws nothing.
class CenterCrop final : public Transform {
 public:
  explicit CenterCrop(const ParamMap& params) : size_(size_param(params, "size")) {}

  Verdict geometry(Size in, std::span<const int64_t> values, OpList& ops) const override {
    require_draws(values, 0, "CenterCrop");
    ops.crop({start(in.width, size_.width), start(in.height, size_.height), size_.width, size_.height});
    return Verdict::good();
  }

  std::optional<Size> fixed_size(std::optional<Size>) const override { return size_; }

 private:
  static int start(int in, int out) noexcept {
    if (out > in) return -((out - in) / 2);
    return static_cast<int>(round_half_even((in - out) / 2.0));
  }

  Size size_;
};

// torchvision's RandomCrop with padding_mode constant.
//
// Draws: [x, y] of the box's corner in the input's pixels, before padding: negative where it starts in the padding.
// Draw numbers: 0 is y, 1 is x. An image that is too small gets [0, 0] and a bad verdict.
class RandomCrop final : public Transform {
 public:
  explicit RandomCrop(const ParamMap& params)
      : size_(size_param(params, "size")), pad_if_needed_(boolean_param(params, "pad_if_needed")) {
    if (is_given(params, "padding")) {
      const std::vector<double>& padding = list_param(params, "padding");
      for (size_t side = 0; side < 4; ++side) padding_[side] = static_cast<int>(padding[side % padding.size()]);
    }
    const std::vector<double>& fill = list_param(params, "fill");
    for (size_t channel = 0; channel < 3; ++channel) {
      fill_[channel] = static_cast<uint8_t>(fill[channel % fill.size()]);
    }
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

  Verdict geometry(Size in, std::span<const int64_t> values, OpList& ops) const override {
    require_draws(values, 2, "RandomCrop");
    const Box room = padded(in);
    if (room.width < size_.width || room.height < size_.height) {
      return Verdict::bad("RandomCrop of " + std::to_string(size_.width) + " x " + std::to_string(size_.height) +
                          " does not fit into " + std::to_string(room.width) + " x " + std::to_string(room.height) +
                          " (pad_if_needed: true would pad)");
    }
    if (values[0] < room.x || values[0] > room.x + room.width - size_.width || values[1] < room.y ||
        values[1] > room.y + room.height - size_.height) {
      throw Error(ErrorKind::usage, "RandomCrop: the drawn corner lies outside the padded image",
                  "use the draws that Pipeline::draw made for this sample");
    }
    ops.crop({static_cast<int>(values[0]), static_cast<int>(values[1]), size_.width, size_.height}, fill_);
    return Verdict::good();
  }

  std::optional<Size> fixed_size(std::optional<Size>) const override { return size_; }

 private:
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
  int padding_[4] = {0, 0, 0, 0};  // left, top, right, bottom
  Fill fill_{0, 0, 0};
};

}  // namespace

TransformInfo center_crop_info() {
  return {.name = "CenterCrop",
          .doc = "crops the middle; a smaller image is padded with black",
          .params = {size_info("size of the result: one number, or [height, width]")},
          .make = [](const ParamMap& params) { return std::make_unique<CenterCrop>(params); }};
}

TransformInfo random_crop_info() {
  return {
      .name = "RandomCrop",
      .doc = "crops a box of fixed size at a random place, after padding",
      .params = {size_info("size of the result: one number, or [height, width]"),
                 {.name = "padding",
                  .kind = ParamKind::integers,
                  .default_value = ParamValue{},
                  .minimum = 0,
                  .maximum = kMaxSide,
                  .lengths = {1, 2, 4},
                  .doc = "pixels added: one number; [left and right, top and bottom]; or [left, top, right, bottom]"},
                 {.name = "pad_if_needed",
                  .kind = ParamKind::boolean,
                  .default_value = false,
                  .doc = "pad images that are smaller than size, instead of calling them bad"},
                 {.name = "fill",
                  .kind = ParamKind::integers,
                  .default_value = std::vector<double>{0},
                  .minimum = 0,
                  .maximum = 255,
                  .lengths = {1, 3},
                  .doc = "colour of the padding: one number, or [red, green, blue]"},
                 {.name = "padding_mode",
                  .kind = ParamKind::text,
                  .default_value = std::string("constant"),
                  .choices = {"constant"},
                  .doc = "only constant"}},
      .make = [](const ParamMap& params) { return std::make_unique<RandomCrop>(params); }};
}

}  // namespace penstock
