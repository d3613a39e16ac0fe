// What a transform is: draws, and what the draws do to the geometry.
//
//   class HalfTurn final : public Transform {                     // a new transform is this and a catalogue entry
//    public:
//     Verdict geometry(Size, std::span<const int64_t>, OpList& ops) const override {
//       ops.flip_horizontal();
//       ops.flip_vertical();
//       return Verdict::good();
//     }
//   };
//
// A geometric transform never touches pixels. Given its input's size and its draws it appends primitive operations
//   (crop with fill, resize, flips) to an OpList; the pipeline joins all transforms' operations, walks them backwards
//   to find which source pixels matter, and runs what is left. The same list serves a mask or the second image of a
//   pair (same operations, another filter) and a card's executor.
// The draws are made from the header alone, before anything is decoded. `draw` must take its values from the stream
//   only; it returns integers, whose meaning each transform documents at its class.
// A pixel transform (colour, blur, rotation) changes the whole image at its place in the pipeline: what precedes it is
//   made whole, its operations (list_ops()) run on that, and the windows of what follows begin anew. Where its draws
//   leave the image as it is (acts() false), it costs nothing and windows pass through it. Standing last, after the final
//   resize, it sees an image of the final size only. Draws, records and hashes are the same as a geometric transform's.
// A group (RandomApply, RandomChoice) stands for the transforms inside it that its draws choose: expand().
// Thread-safety: immutable after construction, all methods const. Failure: a sample that does not suit the transform
//   (an image smaller than the crop) is a bad Verdict; draws that this transform cannot have made are Error(usage).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/decode/image.h"
#include "runtime/pixels/finish.h"
#include "runtime/pixels/image_types.h"
#include "runtime/pixels/resample.h"
#include "runtime/transforms/draw.h"

namespace penstock {

enum class OpKind : uint8_t { crop, resize, flip_horizontal, flip_vertical, paint };

// One step from an image of size `in` to one of size `out`.
struct GeometricOp {
  OpKind kind = OpKind::crop;
  Size in;
  Size out;
  Box box;                           // crop: in the input's coordinates, may reach outside the image
  Fills fill;                        // crop: what is outside
  Filter filter = Filter::bilinear;  // resize
};

// The operations of one transform on one sample. Small and fixed, so that a stage of the hot path allocates nothing.
class OpList {
 public:
  explicit OpList(Size in) noexcept : size_(in) {}

  void crop(const Box& box, const Fills& fill = {}) {
    push({.kind = OpKind::crop, .in = size_, .out = {box.width, box.height}, .box = box, .fill = fill});
  }
  void resize(Size out, Filter filter) { push({.kind = OpKind::resize, .in = size_, .out = out, .filter = filter}); }
  void flip_horizontal() { push({.kind = OpKind::flip_horizontal, .in = size_, .out = size_}); }
  void flip_vertical() { push({.kind = OpKind::flip_vertical, .in = size_, .out = size_}); }

  // Of a pixel transform whose result has another size than its input; one that keeps the size appends nothing.
  void becomes(Size out) { push({.kind = OpKind::paint, .in = size_, .out = out}); }

  Size size() const noexcept { return size_; }  // after all operations so far
  std::span<const GeometricOp> ops() const noexcept { return {ops_.data(), count_}; }

 private:
  void push(const GeometricOp& op) {
    if (count_ == ops_.size()) throw Error(ErrorKind::usage, "a transform has more than 4 geometric operations");
    ops_[count_++] = op;
    size_ = op.out;
  }

  std::array<GeometricOp, 4> ops_{};
  size_t count_ = 0;
  Size size_;
};

// A batch after finishing, as batch transforms change it: images one after another, labels as shares of classes.
struct MixBatch {
  void* images = nullptr;  // [samples, views, 3, height, width] in `format`
  DType dtype = DType::float32;
  MemoryFormat format = MemoryFormat::contiguous;
  int64_t samples = 0;
  int64_t views = 1;
  Size size;
  float* labels = nullptr;  // [samples, classes]
  int64_t classes = 0;
};

class Transform;
struct PixelOp;      // pixel_ops.h
class PixelOpSink;  // pixel_ops.h

// A transform with its draws.
struct Step {
  const Transform* transform = nullptr;
  std::span<const int64_t> values;
};

class Transform {
 public:
  enum class Kind : uint8_t {
    upright,    // nothing but a wish: images come turned as EXIF says; must stand first in the pipeline
    geometric,  // draw() and geometry()
    pixels,     // draw(), acts() and list_ops(), or paint(); geometry() where the size changes
    group,      // draw() and expand()
    views,      // views() and view(): several images of one, with nothing but finishing after it
    function,   // function(): code of the user's that gets the whole image at this point and keeps its size
    batch,      // draw() and mix(): changes a whole finished batch and makes its labels soft; stands at the very end
    finishing,  // finish(): part of the finishing pass, must stand at the end of the pipeline
  };

  virtual ~Transform() = default;
  virtual Kind kind() const noexcept { return Kind::geometric; }

  // Appends this transform's draws for an input of size `in`; none by default. Must append the same number of values
  // for every sample, also for one that geometry() will refuse.
  virtual void draw(DrawStream& stream, Size in, std::vector<int64_t>& values) const;

  virtual Verdict geometry(Size in, std::span<const int64_t> values, OpList& ops) const;

  // The size that every sample has after this transform, given what is known before it; nullopt: depends on the image.
  virtual std::optional<Size> fixed_size(std::optional<Size> in) const { return in; }

  // Why no image of size `in` can go through; empty: it can. For sizes that are known before any image is.
  virtual std::string misfit(Size) const { return {}; }

  // Of a pixel transform: whether an image with these draws changes at all.
  virtual bool acts(std::span<const int64_t> values) const;

  // Of a pixel transform, only where it acts: what it does to the whole image at this point. A mask holds class ids,
  // three equal bytes a pixel; it gets the geometry (nearest) and no colour. The size afterwards must be the one
  // geometry() says. False, with nothing added: it is not made of these operations, and paint() is its own.
  virtual bool list_ops(Size in, std::span<const int64_t> values, ImageRole role, PixelOpSink& to) const;

  // The same, done here; by list_ops() where a transform has no paint() of its own.
  virtual Verdict paint(PixelBuffer& image, std::span<const int64_t> values, ImageRole role,
                        PaintScratch& scratch) const;

  // Of a pixel transform that moves no pixel: masks are spared it, and boxes cut after it are boxes of the source.
  virtual bool colour_only() const noexcept { return false; }

  // Of a group: appends what the draws choose, groups inside expanded too. The spans point into `values`.
  virtual void expand(std::span<const int64_t> values, std::vector<Step>& steps) const;

  // Of a group: all that are inside it, whether drawn or not.
  virtual std::span<const std::unique_ptr<Transform>> inside() const noexcept { return {}; }

  // Of kind views: how many, and what makes number `number` of them.
  virtual int views() const noexcept { return 1; }
  virtual Verdict view(Size in, int number, OpList& ops) const;

  // Of a batch transform: draw() is asked once a batch, with the size of its images.
  virtual void mix(const MixBatch& batch, std::span<const int64_t> values) const;
  virtual int64_t classes() const noexcept { return 0; }       // of the soft labels
  virtual bool needs_float() const noexcept { return false; }  // of the images

  // The axis that the transform's one draw flips, for Pipeline::describe().
  virtual std::optional<OpKind> flips() const noexcept { return std::nullopt; }

  // Of a function: how it is named, as the caller of Pipeline::apply knows it.
  virtual std::string function() const { return {}; }

  // Finishing transforms: adds to `spec`; returns the complaint when it cannot stand after what `spec` says, else "".
  virtual std::string finish(FinishSpec& spec) const;
};

// What `in` becomes by the transform, groups included.
Verdict size_after(const Transform& transform, std::span<const int64_t> values, Size in, Size& out);

// Throws Error(usage) unless there are `count` values.
void require_draws(std::span<const int64_t> values, size_t count, const char* transform);

}  // namespace penstock
