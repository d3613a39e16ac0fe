#include "runtime/transforms/reduction.h"

#include "runtime/decode/jpeg/sample_grid.h"

namespace penstock {

int reduction_for(Size in, Size out) noexcept {
  for (const int reduction : {8, 4, 2}) {
    if (in.width / reduction >= out.width && in.height / reduction >= out.height) return reduction;
  }
  return 1;
}

ReducedSpan reduced_span(int size, int from, int to, int reduction, bool mirrored) noexcept {
  // The last reduced pixel of a file may reach beyond it; from the other side that is where counting begins.
  const int before = mirrored ? reduced_size(size, reduction) * reduction - size : 0;
  ReducedSpan out;
  out.begin = (before + from) / reduction;
  out.end = reduced_size(before + to, reduction);
  out.span.begin = static_cast<double>(before + from - out.begin * reduction) / reduction;
  out.span.length = static_cast<double>(to - from) / reduction;
  if (out.span.length == out.end - out.begin) out.span = {};
  return out;
}

ReducedSpan flipped(const ReducedSpan& span) noexcept {
  if (span.span.whole()) return span;
  ReducedSpan out = span;
  out.span.begin = span.end - span.begin - span.span.begin - span.span.length;
  return out;
}

MirroredAxes mirrored_axes(const ImageHeader& header) noexcept {
  switch (header.orientation) {
    case 2: return {.x = true, .y = false};
    case 3:
    case 7: return {.x = true, .y = true};
    case 4: return {.x = false, .y = true};
    case 6: return {.x = true, .y = false};
    case 8: return {.x = false, .y = true};
    default: return {};
  }
}

}  // namespace penstock
