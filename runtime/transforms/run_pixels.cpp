#include "runtime/transforms/run_pixels.h"

#include <cstddef>
#include <cstring>

#include "runtime/pixels/resample.h"
#include "runtime/transforms/crop_resize_planner.h"

namespace penstock {
namespace {

// Calls paint(x, y, width, height) for the up to four rectangles of a ring.
template <class Paint>
void for_each_side(const PlanRing& ring, Paint paint) {
  const Box& o = ring.outer;
  const Box& i = ring.inner;
  if (is_empty(i)) {
    paint(o.x, o.y, o.width, o.height);
    return;
  }
  paint(o.x, o.y, o.width, i.y - o.y);
  paint(o.x, i.y + i.height, o.width, o.y + o.height - (i.y + i.height));
  paint(o.x, i.y, i.x - o.x, i.height);
  paint(i.x + i.width, i.y, o.x + o.width - (i.x + i.width), i.height);
}

void paint_interleaved(const PlanRing& ring, PixelBuffer& out) {
  for_each_side(ring, [&](int x, int y, int width, int height) {
    for (int row = y; row < y + height; ++row) {
      uint8_t* p = out.row(row) + static_cast<size_t>(x) * 3;
      for (int i = 0; i < width; ++i, p += 3) std::memcpy(p, ring.fill.data(), 3);
    }
  });
}

void paint_planar(const PlanRing& ring, Size size, uint8_t* out) {
  for_each_side(ring, [&](int x, int y, int width, int height) {
    if (width <= 0) return;
    for (size_t channel = 0; channel < 3; ++channel) {
      uint8_t* plane = out + channel * static_cast<size_t>(size.width) * static_cast<size_t>(size.height);
      for (int row = y; row < y + height; ++row) {
        std::memset(plane + static_cast<size_t>(row) * static_cast<size_t>(size.width) + x, ring.fill[channel],
                    static_cast<size_t>(width));
      }
    }
  });
}

}  // namespace

void materialise(const PlanRun& run, const std::vector<PlanRing>& rings, const PixelView& source, PixelBuffer& out) {
  out.resize(run.result.width, run.result.height);
  for (size_t i = run.first_ring; i < run.last_ring; ++i) paint_interleaved(rings[i], out);
  for (int y = 0; y < run.live.height; ++y) {
    const uint8_t* from = source.row(run.flip_vertical ? run.live.height - 1 - y : y);
    uint8_t* to = out.row(run.live.y + y) + static_cast<size_t>(run.live.x) * 3;
    const size_t width = static_cast<size_t>(run.live.width);
    if (!run.flip_horizontal) {
      std::memcpy(to, from, width * 3);
      continue;
    }
    for (size_t x = 0; x < width; ++x) std::memcpy(to + x * 3, from + (width - 1 - x) * 3, 3);
  }
}

void finish_planar(const PlanRun& run, const std::vector<PlanRing>& rings, const PixelView& view, Size size,
                   PixelBuffer& spare, uint8_t* out) {
  for (size_t i = run.first_ring; i < run.last_ring; ++i) paint_planar(rings[i], size, out);
  if (is_empty(run.live)) return;
  if (run.whole()) {
    to_planar(view, run.flip_horizontal, run.flip_vertical, out);
    return;
  }
  spare.resize(run.live.width, run.live.height);
  const uint8_t* from = spare.row(0);
  to_planar(view, run.flip_horizontal, run.flip_vertical, spare.row(0));
  const auto width = static_cast<size_t>(size.width);
  const auto live_width = static_cast<size_t>(run.live.width);
  for (size_t channel = 0; channel < 3; ++channel) {
    uint8_t* to = out + channel * width * static_cast<size_t>(size.height) + static_cast<size_t>(run.live.y) * width +
                  static_cast<size_t>(run.live.x);
    for (int y = 0; y < run.live.height; ++y, to += width, from += live_width) std::memcpy(to, from, live_width);
  }
}

PixelView view_of(const PixelBuffer& buffer) {
  return {buffer.row(0), buffer.width(), buffer.height(), buffer.row_bytes()};
}

}  // namespace penstock
