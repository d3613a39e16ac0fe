// The pipeline of a split: what is drawn for a sample, and what the draws do to its pixels.
//
//   Pipeline pipeline(split.pipeline);                        // throws Error(config) where no fixed size results
//   read_header(bytes, limits, header, pipeline.header_options());
//   Draws draws = pipeline.draw(key, header);                 // host arithmetic only, a few hundred nanoseconds
//   Scratch scratch(limits);                                  // one per thread
//   SampleStatus status = pipeline.apply(bytes, header, draws, out_chw, scratch);
//
// Drawing apart from applying is what makes inspection, serving and CPU/GPU equality simple: draws are plain data.
// `apply` computes windows backwards from the output, so that only the source pixels the result depends on are decoded
// and only the rows and columns needed are resampled, whatever the order of the transforms.
// With arithmetic `fast`, JPEG files whose first resize shrinks them to half or less are decoded at 1/2, 1/4 or 1/8
// (reduction.h); draws, what geometry refuses, and everything behind the resize stay.
// With arithmetic `opencv` a resize is cv2.resize of all of its input, and a reader of headers converts and turns as
// cv2.imread does; with `bgr` the output's planes are blue, green, red, swapped when all else is done.
// A transform `Python` is a wall: the whole image is made before it, and goes through the caller's PixelFunction. So is
// a pixel transform (ColorJitter, RandomRotation, ...), where its draws let it act.
// The last transforms, ToDtype and Normalize, do not run here: they become the FinishSpec of the finishing pass. What
// stands behind them, MixUp and CutMix, is for whoever has a finished batch: mix().
// In the steady state nothing is allocated: buffers live in Scratch and only grow, until Scratch::let_large_go();
//   draw() allocates its Draws.
// Failure: what depends on the sample is a SampleStatus: a crop that does not fit, an intermediate image above the
//   decode limit on pixels, and whatever the decoder says. Error(usage): draws of another pipeline or image, `out` of a
//   wrong size. Error(config): the constructor, naming the transform that cannot stand where it does, or a parameter that
//   is missing. What parameters may be is the job's to check (job/pipeline_reader.h).
// Ownership: `out` is the caller's: planar uint8 [3, height, width], [views, 3, height, width] where there are several.
// Thread-safety: immutable after construction, so one Pipeline serves all threads; each thread brings its own Scratch.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/arithmetic.h"
#include "runtime/base/clock.h"
#include "runtime/base/fields.h"
#include "runtime/base/params.h"
#include "runtime/base/sample.h"
#include "runtime/decode/decoder.h"
#include "runtime/pixels/finish.h"
#include "runtime/pixels/resample.h"
#include "runtime/transforms/image_plan.h"
#include "runtime/transforms/transform.h"

namespace penstock {

class CropResizePlanner;  // what apply() does to one image; crop_resize_planner.h

// Buffers and decoder state of one thread.
struct Scratch {
  explicit Scratch(const DecodeLimits& decode_limits);
  Scratch(Scratch&&) noexcept;
  ~Scratch();

  // What a large picture has left is given back to the system.
  void let_large_go();

  DecodeLimits limits;
  Decoder decoder;
  Resampler resampler;
  PixelBuffer pixels[2];  // ping-pong between the stages
  PixelBuffer whole[2];   // before and after a wall
  PaintScratch paint;
  // Time spent, for the report: accumulated by apply(). A resize that takes rows as they are decoded counts as
  //   decoding.
  int64_t decode_ns = 0;
  int64_t augment_ns = 0;
  std::unique_ptr<CropResizePlanner> plan;
};

// What a pipeline works on: an encoded file, or (where `pixels.data` is given) an image that is decoded already, with
// PixelBuffer::kPadding readable bytes behind it.
struct ImageInput {
  EncodedView bytes;
  PixelView pixels;
  const SideIndex* index = nullptr;  // the file's own, or none
  SideIndex* learned = nullptr;      // where an index that reaches further goes (decode/jpeg/jpeg_decoder.h)
};

enum class DecodeSize : uint8_t { as_apply, full };

// Runs function number `number` of Pipeline::functions(), which stands at `position`, on `image`, keeping its size.
using PixelFunction = std::function<SampleStatus(size_t number, uint16_t position, PixelBuffer& image)>;

class Pipeline {
 public:
  explicit Pipeline(const std::vector<TransformSpec>& transforms, const PixelRules& rules = {});
  ~Pipeline();
  Pipeline(Pipeline&&) noexcept;
  Pipeline& operator=(Pipeline&&) noexcept;

  Draws draw(const DrawKey& key, const ImageHeader& header) const;
  SampleStatus apply(EncodedView bytes, const ImageHeader& header, const Draws& draws, std::span<uint8_t> out,
                     Scratch& scratch) const {
    return apply(ImageInput{bytes, {}, nullptr}, header, draws, out, scratch, {});
  }
  // Error(usage) where the pipeline has functions and `function` is empty.
  // A second image of the sample takes the first one's draws; it must have the same size. A mask (`input` as
  // Decoder::decode_mask gives it) follows the geometry alone: resized by nearest, filled with the fill where that is
  // one number, else with 0; functions do not see it.
  SampleStatus apply(const ImageInput& input, const ImageHeader& header, const Draws& draws, std::span<uint8_t> out,
                     Scratch& scratch, const PixelFunction& function, ImageRole role = ImageRole::image) const;

  // What apply() would do to an image, as data, for executors that do it elsewhere. False: not all of it is data
  // (AugMix, functions, several views, OpenCV's resize, bgr), or it would refuse the sample; then apply() has to be
  // asked. A reduced decode is no data: false, or with DecodeSize::full the plan of arithmetic `exact`, whose pixels are
  // others.
  bool plan(const ImageHeader& header, const Draws& draws, Scratch& scratch, ImagePlan& plan,
            DecodeSize size = DecodeSize::as_apply) const;
  Arithmetic arithmetic() const noexcept { return rules_.arithmetic; }

  // The Python functions in it, in order; most pipelines have none.
  const std::vector<std::string>& functions() const noexcept { return functions_; }

  // How the headers of its images have to be read: oriented, where ExifTranspose stands first.
  const HeaderOptions& header_options() const noexcept { return header_options_; }

  // The batch transforms at its end (MixUp, CutMix). Their draws follow from the seed, the epoch, and which batch it is
  // of which replica; positions are as in draw().
  Draws draw_batch(uint64_t seed, uint32_t epoch, int64_t step, int64_t replica) const;
  void mix(const MixBatch& batch, const Draws& draws) const;
  // Classes of the soft labels they make; 0: there are none.
  int64_t soft_classes() const noexcept { return batch_.empty() ? 0 : batch_.front().transform->classes(); }
  bool mixing_needs_float() const noexcept;

  int out_height() const noexcept { return size_.height; }
  int out_width() const noexcept { return size_.width; }
  // Images of one sample: 1, or those of FiveCrop and TenCrop.
  int views() const noexcept { return views_ ? views_->views() : 1; }
  const FinishSpec& finish() const noexcept { return finish_; }

  // For people and manifests; the sample must be one that apply() finds good, otherwise only what comes before the
  // transform that refuses it is described. `crop` is the integer box cut from the source before any resize, in source
  // pixels (it may lie outside the image where a transform pads); nullopt-like {0,0,0,0} with has_crop false where the
  // pipeline resizes or rotates first or never crops. `flip` is {horizontal, vertical}, of all flips together. `others`
  // are the draws that neither explains: crops after a resize, flips where several share an axis, drawn sizes and
  // filters, pixel transforms, groups.
  struct Description {
    bool has_crop = false;
    Box crop;
    bool flip[2] = {false, false};
    Draws others;
  };
  Description describe(const ImageHeader& header, const Draws& draws) const;

  // Canonical text of the transforms with all their parameters; equal text means equal pixels (for one arithmetic and
  // one set of decoder versions).
  const std::string& canonical() const noexcept { return canonical_; }

 private:
  struct Placed {
    uint16_t position = 0;
    Transform transform;
  };
  struct PlacedBatch {
    uint16_t position = 0;
    std::unique_ptr<BatchTransform> transform;
  };
  struct Stage;

  void add_batch_transform(uint16_t position, std::unique_ptr<BatchTransform> transform, const std::string& name);
  void count_flips(const Transform& transform);
  size_t view_bytes() const noexcept {
    return static_cast<size_t>(size_.width) * static_cast<size_t>(size_.height) * 3;
  }
  void swap_channels(std::span<uint8_t> out) const;
  template <class Visit>
  SampleStatus visit_steps(const Draws& draws, Size& size, Scratch& scratch, const Visit& visit) const;
  SampleStatus run_stages(const ImageInput& input, const ImageHeader& header, const Draws& draws,
                          std::span<uint8_t> out, Scratch& scratch, const PixelFunction& function) const;
  SampleStatus make_views(Stage& stage, const ImageHeader& header, std::span<uint8_t> out, Scratch& scratch) const;
  SampleStatus add_geometry(const GeometricTransform& transform, std::span<const int64_t> values, Size& size,
                            CropResizePlanner& plan) const;
  void add_operation(GeometricOp op, CropResizePlanner& plan) const;
  SampleStatus make_whole(Stage& stage, const ImageHeader& header, Scratch& scratch) const;
  SampleStatus paint(const PixelTransform& transform, std::span<const int64_t> values, Stage& stage,
                     const ImageHeader& header, Scratch& scratch) const;
  bool plan_pixels(const PixelTransform& transform, std::span<const int64_t> values, const ImageHeader& header,
                   Size& size, Scratch& scratch, ImagePlan& found, DecodeSize decoded) const;
  bool plan_stage(const ImageHeader& header, Size size, Scratch& scratch, ImagePlan& found, DecodeSize decoded) const;
  SampleStatus build_stage(const ImageHeader& header, Size size, Scratch& scratch, bool reducible, int& reduction,
                           Box& judged) const;
  SampleStatus run_stage(const ImageInput& source, const ImageHeader& header, Size size, Scratch& scratch,
                         uint8_t* planar, PixelBuffer* whole) const;

  PixelRules rules_;
  HeaderOptions header_options_;
  std::vector<Placed> placed_;          // of samples, before finishing
  std::vector<PlacedBatch> batch_;      // after it
  std::vector<std::string> functions_;  // their names
  int flips_[2] = {0, 0};               // how many transforms flip each axis
  Size size_;
  std::unique_ptr<ViewsTransform> views_;  // behind all of placed_; nullptr: one image a sample
  FinishSpec finish_;
  std::string canonical_;
  MonotonicClock clock_;
};

// What finishes the pipeline's images; its own spec, or another's for the program that wants one.
Finisher finisher_of(const Pipeline& pipeline, const FinishSpec& spec);

}  // namespace penstock
