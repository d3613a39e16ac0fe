// Which source pixels an output pixel is made of, and with what weights: one dimension of Pillow's resampling.
//
//   Taps taps;
//   compute_taps(500, 256, Filter::bilinear, 16, 224, taps);   // outputs 16 .. 239 of 256, from 500 inputs
//   taps.start[i], taps.size[i], taps.coefficients(i)          // of output 16 + i
//
// Source of the semantics: Pillow src/libImaging/Resample.c, precompute_coeffs and normalize_coeffs_8bpc (taps in
//   double, normalised, rounded half away from zero to Q22); for `nearest` Geometry.c, ImagingScaleAffine, which adds
//   up the source position in double, so we do too.
// Leading and trailing zero coefficients are dropped: they change no sum, and fewer source pixels need decoding.
// Lanczos and Hamming call sin() and cos() of the C library, as Pillow does; rounding to 22 bits hides differences of the
// last place.
// Ownership: plain vectors, whose capacity is kept when a Taps is computed anew. Thread-safety: a value.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/pixels/resample.h"

namespace penstock {

struct Taps {
  int first = 0;                     // the output that entry 0 belongs to
  int stride = 0;                    // coefficients reserved per output
  std::vector<int> start;            // first source pixel
  std::vector<int> size;             // number of source pixels, at least 1
  std::vector<int32_t> q22;          // stride per output
  size_t quad_stride = 0;            // words reserved per output
  std::vector<uint32_t> quad_words;  // see quads()

  int count() const noexcept { return static_cast<int>(start.size()); }
  const int32_t* coefficients(int i) const noexcept { return q22.data() + static_cast<size_t>(i) * stride; }

  // For resample_kernels.h, which says how coefficients are split: those of four taps at a time, the first from a
  // source pixel on whose number is a multiple of four, filled up with zeros at both ends.
  int first_quad(int i) const noexcept { return start[static_cast<size_t>(i)] / 4; }
  int quad_count(int i) const noexcept {
    const auto at = static_cast<size_t>(i);
    return (start[at] % 4 + size[at] + 3) / 4;
  }
  const uint32_t* quads(int i) const noexcept { return quad_words.data() + static_cast<size_t>(i) * quad_stride; }

  // The source pixels that all outputs together need: [begin, end).
  int begin() const noexcept;
  int end() const noexcept;
};

void compute_taps(int in_size, int out_size, Filter filter, int first, int count, Taps& taps, InputSpan span = {});

}  // namespace penstock
