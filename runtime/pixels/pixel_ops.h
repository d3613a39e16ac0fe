// What pixel transforms do to an image, as data: the operations that CPU and GPUs have in common.
//
//   class Kept final : public PixelOpSink { void add(const PixelOp& op) override { ops.push_back(op); } ... };
//   if (transform.list_ops(size, values, ImageRole::image, kept)) ...   // in order; false: it is made of none
//   run_pixel_op(image, op, scratch);                                   // what the CPU does
//
// Each changes the whole image that the one before it left. A transform says once what it does; whoever executes it
//   (PixelTransform::paint(), gpu/batch_builder.h) gives the same bytes.
// Ownership: values. Thread-safety: values, and a pure function on the caller's image. Failure: none, but for memory.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "runtime/pixels/blur.h"
#include "runtime/pixels/color.h"
#include "runtime/pixels/image_types.h"
#include "runtime/pixels/warp.h"

namespace penstock {

struct TableOp {
  ByteTable table;
};
struct GreyOp {};
struct ContrastOp {
  float factor = 1;
};
struct SaturationOp {
  float factor = 1;
};
struct SharpnessOp {
  float factor = 1;
};
struct HueOp {
  uint8_t shift = 0;
};
// Channel c becomes the image's channel from[c].
struct PermuteOp {
  ChannelOrder from{0, 1, 2};
};
struct AutocontrastOp {};
struct EqualizeOp {};
struct BlurOp {
  GaussianWeights across;
  GaussianWeights down;
};
// A box within the image becomes one colour, or noise of this seed (erase_noise.h).
struct EraseOp {
  Box box;
  bool noise = false;
  Fill fill{};
  uint64_t seed = 0;
};
// Every byte gets normal noise of this seed (gaussian_noise.h).
struct NoiseOp {
  float offset = 0;
  float spread = 0;
  bool clip = true;
  uint64_t seed = 0;
};
struct WarpOp {
  Rotation rotation;  // any map, and what it makes of the size
  Filter filter = Filter::nearest;
  Fill fill{};
};
// Output (x, y) is the image's pixel (columns[x], rows[y]).
struct BorderOp {
  std::vector<int> columns;
  std::vector<int> rows;
};

struct PixelOp : std::variant<TableOp, GreyOp, ContrastOp, SaturationOp, SharpnessOp, HueOp, PermuteOp, AutocontrastOp,
                              EqualizeOp, BlurOp, EraseOp, NoiseOp, WarpOp, BorderOp> {
  using variant::variant;
};

class PixelOpSink {
 public:
  virtual ~PixelOpSink() = default;
  virtual void add(const PixelOp& op) = 0;
};

void run_pixel_op(PixelBuffer& image, const PixelOp& op, PaintScratch& scratch);

// Runs them as they come.
class Painter final : public PixelOpSink {
 public:
  Painter(PixelBuffer& image, PaintScratch& scratch) : image_(image), scratch_(scratch) {}
  void add(const PixelOp& op) override { run_pixel_op(image_, op, scratch_); }

 private:
  PixelBuffer& image_;
  PaintScratch& scratch_;
};

}  // namespace penstock
