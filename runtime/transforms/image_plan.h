// All that a pipeline does to one image, as plain data: what Pipeline::apply() would do, for other executors.
//
//   ImagePlan plan;
//   if (pipeline.plan(header, draws, scratch, plan)) ...
//
// Stages follow each other: the geometry of the first starts from the source image, that of each later one from the
//   whole image that the operations of the stage before it have left. The last stage's image is the output.
// Ownership, thread-safety: values.
#pragma once

#include <vector>

#include "runtime/pixels/pixel_ops.h"
#include "runtime/transforms/crop_resize_plan.h"

namespace penstock {

struct PlanStage {
  CropResizePlan geometry;
  std::vector<PixelOp> ops;  // behind it, in order
};

struct ImagePlan {
  std::vector<PlanStage> stages;
};

}  // namespace penstock
