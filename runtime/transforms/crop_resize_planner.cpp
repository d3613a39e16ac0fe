#include "runtime/transforms/crop_resize_planner.h"

#include <algorithm>
#include <string>

#include "runtime/transforms/reduction.h"

namespace penstock {
namespace {

Box intersection(const Box& a, const Box& b) {
  const int x = std::max(a.x, b.x);
  const int y = std::max(a.y, b.y);
  return {x, y, std::max(0, std::min(a.x + a.width, b.x + b.width) - x),
          std::max(0, std::min(a.y + a.height, b.y + b.height) - y)};
}

// At least so many of `in` pixels go into `count` of `out` pixels.
int64_t least_needed(int64_t count, int64_t in, int64_t out, Filter filter) {
  return count == out && filter != Filter::nearest ? in : (count - 1) * in / out;
}

SampleStatus check_resize(const GeometricOp& op, const Box& window, int64_t max_pixels) {
  if (is_opencv(op.filter)) {
    for (const Size& size : {op.in, op.out}) {
      if (int64_t{size.width} * size.height > max_pixels) return too_large(size.width, size.height, max_pixels);
    }
    return SampleStatus::good();
  }
  const int64_t width = least_needed(window.width, op.in.width, op.out.width, op.filter);
  const int64_t height = least_needed(window.height, op.in.height, op.out.height, op.filter);
  const int64_t rows = std::max<int64_t>(window.height, height);  // between the horizontal and the vertical pass
  if (window.width * rows > max_pixels) return too_large(window.width, rows, max_pixels);
  if (width * height > max_pixels) return too_large(width, height, max_pixels);
  return SampleStatus::good();
}

}  // namespace

SampleStatus too_large(int64_t width, int64_t height, int64_t limit) {
  return SampleStatus::bad("the pipeline needs an intermediate image of " + std::to_string(width) + " x " +
                           std::to_string(height) + ", above the limit of " + std::to_string(limit) + " pixels");
}

SampleStatus CropResizePlanner::build(Size out, int64_t max_pixels, Resampler& resampler) {
  runs.clear();
  rings.clear();
  begin_run({0, 0, out.width, out.height});
  for (size_t i = ops.size(); i-- > 0;) {
    const GeometricOp& op = ops[i];
    PlanRun& run = runs.back();
    switch (op.kind) {
      case OpKind::flip_horizontal:
        run.source.x = op.in.width - (run.source.x + run.source.width);
        run.flip_horizontal = !run.flip_horizontal;
        break;
      case OpKind::flip_vertical:
        run.source.y = op.in.height - (run.source.y + run.source.height);
        run.flip_vertical = !run.flip_vertical;
        break;
      case OpKind::crop:
        undo_crop(run, op);
        if (is_empty(run.live)) return SampleStatus::good();
        break;
      case OpKind::resize:
        if (op.in == op.out) break;  // Pillow copies
        if (SampleStatus status = check_resize(op, run.source, max_pixels); !status.ok()) return status;
        run.after_resize = true;
        run.geometry = {op.in.width, op.in.height, op.out.width, op.out.height, op.filter};
        run.need = resampler.source_window(run.geometry, run.source);
        begin_run(Box{run.need});
        break;
    }
  }
  return SampleStatus::good();
}

int CropResizePlanner::reduce(const ImageHeader& header, Resampler& resampler) {
  if (runs.size() < 2) return 1;
  PlanRun& first = runs.back();
  PlanRun& resized = runs[runs.size() - 2];
  ResampleGeometry& g = resized.geometry;
  if (!first.whole() || !takes_rows(g.filter)) return 1;
  const int reduction = reduction_for({g.in_width, g.in_height}, {g.out_width, g.out_height});
  // All that the resize takes in, of which the run holds what is needed.
  const int x = first.flip_horizontal ? first.source.x + first.source.width + resized.need.x - g.in_width
                                      : first.source.x - resized.need.x;
  const int y = first.flip_vertical ? first.source.y + first.source.height + resized.need.y - g.in_height
                                    : first.source.y - resized.need.y;
  if (reduction == 1 || !Box{0, 0, header.width, header.height}.contains({x, y, g.in_width, g.in_height})) return 1;
  const MirroredAxes mirrored = mirrored_axes(header);
  const ReducedSpan columns = reduced_span(header.width, x, x + g.in_width, reduction, mirrored.x);
  const ReducedSpan rows = reduced_span(header.height, y, y + g.in_height, reduction, mirrored.y);
  g.in_width = columns.end - columns.begin;
  g.in_height = rows.end - rows.begin;
  g.columns = (first.flip_horizontal ? flipped(columns) : columns).span;
  g.rows = (first.flip_vertical ? flipped(rows) : rows).span;
  const Box need = resampler.source_window(g, resized.source);
  resized.need = need;
  first.source = {first.flip_horizontal ? columns.end - need.x - need.width : columns.begin + need.x,
                  first.flip_vertical ? rows.end - need.y - need.height : rows.begin + need.y, need.width, need.height};
  first.result = {need.width, need.height};
  first.live = {0, 0, need.width, need.height};
  return reduction;
}

SampleStatus CropResizePlanner::check_sizes(const DecodeLimits& limits) const {
  for (size_t i = 0; i < runs.size(); ++i) {
    const PlanRun& run = runs[i];
    if (run.after_resize) {
      // The window itself, and what is between the horizontal and the vertical pass.
      const int64_t rows = std::max(run.source.height, run.need.height);
      if (int64_t{run.source.width} * rows > limits.max_pixels) {
        return too_large(run.source.width, rows, limits.max_pixels);
      }
    }
    if (i > 0 && int64_t{run.result.width} * run.result.height > limits.max_pixels) {
      return too_large(run.result.width, run.result.height, limits.max_pixels);
    }
  }
  return SampleStatus::good();
}

void CropResizePlanner::begin_run(const Box& window) {
  runs.push_back({.source = window,
                  .result = {window.width, window.height},
                  .live = {0, 0, window.width, window.height},
                  .first_ring = rings.size(),
                  .last_ring = rings.size()});
}

void CropResizePlanner::undo_crop(PlanRun& run, const GeometricOp& op) {
  const Box wanted{run.source.x + op.box.x, run.source.y + op.box.y, run.source.width, run.source.height};
  const Box inside = intersection(wanted, {0, 0, op.in.width, op.in.height});
  run.source = inside;
  if (inside == wanted) return;
  const int left = inside.x - wanted.x;
  const int top = inside.y - wanted.y;
  const int right = wanted.width - left - inside.width;
  const int bottom = wanted.height - top - inside.height;
  const Box outer = run.live;
  if (is_empty(inside)) {
    run.live = {outer.x, outer.y, 0, 0};
  } else {
    // Flips after this crop have mirrored the result, so what is cut off on the left there may be on the right here.
    run.live = {outer.x + (run.flip_horizontal ? right : left), outer.y + (run.flip_vertical ? bottom : top),
                inside.width, inside.height};
  }
  rings.push_back({outer, run.live, op.fill.of(role)});
  run.last_ring = rings.size();
}

}  // namespace penstock
