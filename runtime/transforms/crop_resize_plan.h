// A pipeline's crops, flips and resizes on one sample, as plain data: what Pipeline::apply() goes by, and other
// executors too (image_plan.h).
//
// Runs stand backwards: the last of them cuts its result from the image that is there, each earlier one from what a
//   resize makes of the result before it, and runs[0] is the output. Within a run, crops and flips are one mapping: the
//   pixels of `source` go to `live`, mirrored or not; what is outside is painted, ring by ring in order, with the fills
//   of the crops that reached outside their image.
// Ownership, thread-safety: values; their capacity is kept when they are made anew.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/decode/image.h"
#include "runtime/pixels/resample.h"
#include "runtime/transforms/transform.h"

namespace penstock {

struct PlanRing {  // outer minus inner, in the coordinates of the run's result
  Box outer;
  Box inner;
  Fill fill;
};

struct PlanRun {
  Box source;  // in the coordinates of the image that the run starts from
  Size result;
  Box live;  // where the source's pixels are in the result; empty: all is painted, and nothing before matters
  bool flip_horizontal = false;
  bool flip_vertical = false;
  size_t first_ring = 0;
  size_t last_ring = 0;
  // The resize before this run, making `source` of it from `need`. Absent for the last (earliest) run.
  bool after_resize = false;
  ResampleGeometry geometry;
  Box need;

  bool whole() const noexcept { return live.width == result.width && live.height == result.height; }
  bool trivial() const noexcept { return whole() && !flip_horizontal && !flip_vertical; }
};

struct CropResizePlan {
  std::vector<PlanRun> runs;
  std::vector<PlanRing> rings;
};

}  // namespace penstock
