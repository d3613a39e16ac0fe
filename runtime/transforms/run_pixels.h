// The pixels of a plan's runs: what a run takes from its source, mirrored or not, and the fills around it.
//
//   materialise(run, plan.rings, source_view, buffer);                  // interleaved, for the resize that follows
//   finish_planar(plan.runs[0], plan.rings, view, size, spare, out);    // the last one, to the output's planes
//
// Internal to runtime/transforms. Ownership: all memory is the caller's; `out` has 3 x size pixels, buffers grow.
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/decode/image.h"
#include "runtime/transforms/crop_resize_plan.h"
#include "runtime/transforms/transform.h"

namespace penstock {

// A run in the middle: its result, interleaved, for the resize that follows.
void materialise(const PlanRun& run, const std::vector<PlanRing>& rings, const PixelView& source, PixelBuffer& out);

// The last run where no resize wrote the output directly.
void finish_planar(const PlanRun& run, const std::vector<PlanRing>& rings, const PixelView& view, Size size,
                   PixelBuffer& spare, uint8_t* out);

PixelView view_of(const PixelBuffer& buffer);

}  // namespace penstock
