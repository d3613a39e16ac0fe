#include "runtime/pixels/pixel_ops.h"

#include <cstring>

#include "runtime/pixels/border.h"
#include "runtime/pixels/erase_noise.h"
#include "runtime/pixels/gaussian_noise.h"

namespace penstock {
namespace {

void erase(PixelBuffer& image, const EraseOp& op) {
  const Box& box = op.box;
  const auto bytes = static_cast<uint32_t>(box.width) * 3;
  uint32_t number = 0;
  for (int row = box.y; row < box.y + box.height; ++row) {
    uint8_t* to = image.row(row) + static_cast<size_t>(box.x) * 3;
    if (!op.noise) {
      for (int i = 0; i < box.width; ++i, to += 3) std::memcpy(to, op.fill.data(), 3);
      continue;
    }
    for (uint32_t done = 0; done < bytes; done += 16) {
      const PhiloxBlock block = noise_block(op.seed, number++);
      const uint32_t count = bytes - done < 16 ? bytes - done : 16;
      for (uint32_t i = 0; i < count; ++i) to[done + i] = noise_byte(block, i);
    }
  }
}

void add_noise(PixelBuffer& image, const NoiseOp& op) {
  uint32_t pixel = 0;
  for (int y = 0; y < image.height(); ++y) {
    uint8_t* at = image.row(y);
    for (int x = 0; x < image.width(); ++x, at += 3) {
      const PhiloxBlock block = normal_block(op.seed, pixel++);
      for (int c = 0; c < 3; ++c) at[c] = noisy_byte(at[c], normal_of(block.word[c]), op.offset, op.spread, op.clip);
    }
  }
}

}  // namespace

void run_pixel_op(PixelBuffer& image, const PixelOp& op, PaintScratch& scratch) {
  struct Visitor {
    PixelBuffer& image;
    PaintScratch& scratch;
    void operator()(const TableOp& o) const { map_bytes(image, o.table); }
    void operator()(const GreyOp&) const { grayscale(image); }
    void operator()(const ContrastOp& o) const { adjust_contrast(image, o.factor); }
    void operator()(const SaturationOp& o) const { adjust_saturation(image, o.factor); }
    void operator()(const SharpnessOp& o) const { adjust_sharpness(image, o.factor, scratch); }
    void operator()(const HueOp& o) const { shift_hue(image, o.shift); }
    void operator()(const PermuteOp& o) const { permute_channels(image, o.from); }
    void operator()(const AutocontrastOp&) const { autocontrast(image); }
    void operator()(const EqualizeOp&) const { equalize(image); }
    void operator()(const BlurOp& o) const { gaussian_blur(image, o.across, o.down, scratch); }
    void operator()(const EraseOp& o) const { erase(image, o); }
    void operator()(const NoiseOp& o) const { add_noise(image, o); }
    void operator()(const WarpOp& o) const { rotate(image, o.rotation, o.filter, o.fill, scratch); }
    void operator()(const BorderOp& o) const { cut_with_border(image, o.columns, o.rows, scratch); }
  };
  std::visit(Visitor{image, scratch}, static_cast<const PixelOp::variant&>(op));
}

}  // namespace penstock
