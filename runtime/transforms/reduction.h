// Decoding a photo at a fraction of its size (arithmetic: fast): how far, and where a box lies in the reduced image.
//
//   const int reduction = reduction_for({crop.width, crop.height}, {224, 224});          // 1, 2, 4 or 8
//   const ReducedSpan columns = reduced_span(header.width, crop.x, crop.x + crop.width, reduction, false);
//   // columns.begin .. columns.end of the reduced image; columns.span is where the crop lies among them
//
// The rule is Pillow's (JpegImageFile.draft; thumbnail() asks it for twice the pixels of its result): the largest of 8,
//   4 and 2 that leaves at least as many pixels as the output has, both ways. What is measured of its quality stands in
//   ../../tests/decode/EXACTNESS.md.
// A pixel of the reduced image stands for reduction x reduction pixels of the file, counted from the file's top left,
//   so an edge at x lies at x / reduction, in general inside a pixel: Resampler's spans take fractions, as Pillow's
//   resize(box=...). The pixels at the edges are used whole, up to the next full one; none beyond.
// Thread-safety: pure functions.
#pragma once

#include "runtime/decode/image.h"
#include "runtime/pixels/resample.h"
#include "runtime/transforms/transform.h"

namespace penstock {

int reduction_for(Size in, Size out) noexcept;

struct ReducedSpan {
  int begin = 0;  // pixels of the reduced image
  int end = 0;
  InputSpan span;  // within them
};

// Pixels from .. to of `size`. `mirrored`: they count from the file's other side, where EXIF turns it.
ReducedSpan reduced_span(int size, int from, int to, int reduction, bool mirrored) noexcept;

// The same span seen from the other end.
ReducedSpan flipped(const ReducedSpan& span) noexcept;

// Whether the oriented image's columns and rows count from the file's other side.
struct MirroredAxes {
  bool x = false;
  bool y = false;
};
MirroredAxes mirrored_axes(const ImageHeader& header) noexcept;

}  // namespace penstock
