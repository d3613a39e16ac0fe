// A pipeline's operations on one sample, cut into runs of crops and flips with a resize between each two:
//
//   decode(run n-1's source) → run n-1 → resize → run n-2 → ... → resize → run 0 → out
//
//   plan.ops.push_back(op); ...                                 // in the pipeline's order
//   SampleStatus status = plan.build(out, limits.max_pixels, resampler);
//   plan.reduce(header, resampler);                             // arithmetic: fast
//   ... plan.runs, plan.rings                                   // crop_resize_plan.h; their pixels: run_pixels.h
//
// Crops and flips of a run collapse into one integer mapping: the pixels of `source` go to `live`, mirrored or not, and
// what is outside is painted, ring by ring, with the fills of the crops that reached outside their image. Walking from
// the output backwards keeps every box as small as the result needs.
// Internal to runtime/transforms: Pipeline::apply() makes one for each image. Memory: kept from image to image.
// Thread-safety: one per thread. Failure: a SampleStatus, before memory is taken.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/decode/image.h"
#include "runtime/pixels/resample.h"
#include "runtime/transforms/crop_resize_plan.h"
#include "runtime/transforms/transform.h"

namespace penstock {

inline bool is_empty(const Box& box) {
  return box.width <= 0 || box.height <= 0;
}

// The status of an intermediate image above the limit on pixels.
SampleStatus too_large(int64_t width, int64_t height, int64_t limit);

class CropResizePlanner {
 public:
  std::vector<GeometricOp> ops;  // since the image was last made whole
  std::vector<Step> steps;       // of one transform
  ImageRole role = ImageRole::image;
  std::vector<PlanRun> runs;  // backwards: runs[0] makes the output
  std::vector<PlanRing> rings;

  // Bad where a resize would read more than `max_pixels`. Asked before its window is known, because finding that takes
  // memory for every row and column of it.
  SampleStatus build(Size out, int64_t max_pixels, Resampler& resampler);

  // After build(), where the earliest run is of a JPEG file that is still to be decoded: has it decoded at 1/2, 1/4 or
  // 1/8, where the resize behind it shrinks that much, and gives which; 1: nothing is changed. What the run would have
  // read at full size is the caller's to keep: the status is about that.
  int reduce(const ImageHeader& header, Resampler& resampler);

  // Memory is bounded before any is taken: by the decode limit, for intermediate images too. (A sliver of a file that
  // is resized by its shorter edge and then as a whole would otherwise ask for gigabytes.)
  SampleStatus check_sizes(const DecodeLimits& limits) const;

 private:
  void begin_run(const Box& window);
  void undo_crop(PlanRun& run, const GeometricOp& op);
};

}  // namespace penstock
