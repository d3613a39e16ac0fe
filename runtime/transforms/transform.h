// What a transform is: draws, and what the draws do. Each kind is a type of its own, with what it can do and no more.
//
//   class HalfTurn final : public GeometricTransform {            // a new transform is this and a catalogue entry
//    public:
//     SampleStatus geometry(Size, std::span<const int64_t>, OpList& ops) const override {
//       ops.flip_horizontal();
//       ops.flip_vertical();
//       return SampleStatus::good();
//     }
//   };
//
// GeometricTransform never touches pixels. Given its input's size and its draws it appends primitive operations
//   (crop with fill, resize, flips) to an OpList; the pipeline joins all transforms' operations, walks them backwards
//   to find which source pixels matter, and runs what is left. The same list serves a mask or the second image of a
//   pair (same operations, another filter) and a GPU's executor.
// PixelTransform (colour, blur, rotation) changes the whole image at its place in the pipeline: what precedes it is
//   made whole, its operations (list_ops()) run on that, and the windows of what follows begin anew. Where its draws
//   leave the image as it is (acts() false), it costs nothing and windows pass through it. Standing last, after the
//   final resize, it sees an image of the final size only. Draws, records and hashes are the same as a geometric
//   transform's.
// TransformGroup (RandomApply, RandomChoice) stands for the transforms inside it that its draws choose: expand().
// ViewsTransform (FiveCrop) cuts several images of one; nothing but finishing after it. PythonFunction is code of the
//   user's that gets the whole image at its place and keeps its size.
// FinishingTransform (ToDtype) is a part of the finishing pass, and stands at the pipeline's end. BatchTransform
//   (MixUp) changes a whole finished batch, and stands behind that. ExifTranspose says how files are to be read, and
//   stands first.
// The draws are made from the header alone, before anything is decoded. `draw` must take its values from the stream
//   only; it returns integers, whose meaning each transform documents at its class.
// Thread-safety: immutable after construction, all methods const. Failure: a sample that does not suit the transform
//   (an image smaller than the crop) is a bad SampleStatus; draws that this transform cannot have made are
//   Error(usage).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/decode/image.h"
#include "runtime/pixels/finish.h"
#include "runtime/pixels/image_types.h"
#include "runtime/pixels/resample.h"
#include "runtime/transforms/draw.h"

namespace penstock {

enum class OpKind : uint8_t { crop, resize, flip_horizontal, flip_vertical };

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

struct Transform;
class PixelOpSink;  // pixel_ops.h

// A transform with its draws.
struct Step {
  const Transform* transform = nullptr;
  std::span<const int64_t> values;
};

class DrawingTransform {
 public:
  virtual ~DrawingTransform() = default;

  // Appends this transform's draws for an input of size `in`; none by default. Must append the same number of values
  // for every input, also for one that it will refuse.
  virtual void draw(DrawStream& stream, Size in, std::vector<int64_t>& values) const;
};

// A transform of samples, one by one.
class SampleTransform : public DrawingTransform {
 public:
  // The size that every sample has after this transform, given what is known before it; nullopt: depends on the image.
  virtual std::optional<Size> fixed_size(std::optional<Size> in) const { return in; }
  // Why no image of size `in` can go through; empty: it can. For sizes that are known before any image is.
  virtual std::string misfit(Size) const { return {}; }
};

class GeometricTransform : public SampleTransform {
 public:
  virtual SampleStatus geometry(Size in, std::span<const int64_t> values, OpList& ops) const = 0;
  // The axis that the transform's one draw flips, for Pipeline::describe().
  virtual std::optional<OpKind> flips() const noexcept { return std::nullopt; }
  // Whether the crop and flips of Pipeline::describe() say all that it draws.
  virtual bool draws_only_cuts() const noexcept { return true; }
};

class PixelTransform : public SampleTransform {
 public:
  // What an image of size `in` becomes, acting or not; keeps the size by default.
  virtual SampleStatus size_after(Size in, std::span<const int64_t> values, Size& out) const;
  // Whether an image with these draws changes at all.
  virtual bool acts(std::span<const int64_t> values) const;
  // Only where it acts: what it does to the whole image at this point. A mask holds class ids, three equal bytes a
  // pixel; it gets the geometry (nearest) and no colour. The size afterwards must be the one size_after() says. False,
  // with nothing added: it is not made of these operations, and paint() is its own.
  virtual bool list_ops(Size in, std::span<const int64_t> values, ImageRole role, PixelOpSink& to) const;
  // The same, done here; by list_ops() where a transform has no paint() of its own.
  virtual SampleStatus paint(PixelBuffer& image, std::span<const int64_t> values, ImageRole role,
                             PaintScratch& scratch) const;
  // It moves no pixel: masks are spared it, and boxes cut after it are boxes of the source.
  virtual bool colour_only() const noexcept { return false; }
};

class TransformGroup : public SampleTransform {
 public:
  // Appends what the draws choose, groups inside expanded too. The spans point into `values`.
  virtual void expand(std::span<const int64_t> values, std::vector<Step>& steps) const = 0;
  // All that are inside it, whether drawn or not; geometric and pixel transforms, and groups of them.
  virtual std::span<const Transform> inside() const noexcept = 0;
};

class ViewsTransform : public SampleTransform {
 public:
  virtual int views() const noexcept = 0;
  // What makes number `number` of them.
  virtual SampleStatus view(Size in, int number, OpList& ops) const = 0;
};

struct PythonFunction {
  std::string name;  // as the caller of Pipeline::apply knows it
};

class FinishingTransform {
 public:
  virtual ~FinishingTransform() = default;
  // Adds to `spec`; returns the complaint when it cannot stand after what `spec` says, else "".
  virtual std::string finish(FinishSpec& spec) const = 0;
};

// draw() is asked once a batch, with the size of its images.
class BatchTransform : public DrawingTransform {
 public:
  virtual void mix(const MixBatch& batch, std::span<const int64_t> values) const = 0;
  virtual int64_t classes() const noexcept = 0;                // of the soft labels
  virtual bool needs_float() const noexcept { return false; }  // of the images
};

struct ExifTranspose {};

// What the catalogue makes: one of the kinds.
struct Transform : std::variant<ExifTranspose, std::unique_ptr<GeometricTransform>, std::unique_ptr<PixelTransform>,
                                std::unique_ptr<TransformGroup>, std::unique_ptr<ViewsTransform>, PythonFunction,
                                std::unique_ptr<FinishingTransform>, std::unique_ptr<BatchTransform>> {
  using variant::variant;
};

// nullptr: the transform is of another kind. Kind: SampleTransform and DrawingTransform, too.
template <class Kind>
const Kind* as(const Transform& transform) {
  return std::visit(
      [](const auto& one) -> const Kind* {
        if constexpr (requires(const Kind* kind) { kind = one.get(); }) {
          return one.get();
        } else {
          return nullptr;
        }
      },
      static_cast<const Transform::variant&>(transform));
}

// What `in` becomes by the transform, groups included.
SampleStatus size_after(const Transform& transform, std::span<const int64_t> values, Size in, Size& out);

// Throws Error(usage) unless there are `count` values.
void require_draws(std::span<const int64_t> values, size_t count, const char* transform);

}  // namespace penstock
