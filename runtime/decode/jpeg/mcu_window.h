// Which MCUs of a JPEG file a box of pixels depends on, and where a row of their coefficients goes.
//
//   const McuWindow window = mcu_window(frame, box);     // or, of a reduced image (sample_grid.h), (frame, grid, box)
//   std::vector<int16_t> tiles(window.most_coefficients(frame));
//   for (int row = window.first_row; row < window.end_row; ++row) {
//     const CoefficientTarget target = window.target(frame, row, tiles.data());
//     ...
//   }
// Interpolation of chroma reaches one sample beyond the box on each side, and libjpeg reads a row of MCUs more for it;
//   such rows lend chroma alone.
// Thread-safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/decode/image.h"
#include "runtime/decode/jpeg/coefficient_tiles.h"
#include "runtime/decode/jpeg/entropy.h"
#include "runtime/decode/jpeg/jpeg_frame.h"
#include "runtime/decode/jpeg/sample_grid.h"

namespace penstock {

struct McuColumns {
  int first = 0;
  int end = 0;

  size_t count() const noexcept { return static_cast<size_t>(end - first); }
};

struct McuWindow {
  McuColumns columns;
  int first_row = 0;  // rows of MCUs
  int end_row = 0;    // as many as libjpeg reads, counted from row 0
  int first_luma_row = 0;
  int end_luma_row = 0;

  // The largest number of coefficients in one row, luma included.
  size_t most_coefficients(const JpegFrame& frame) const;
  // One component after the other from `tiles` on; luma has no place in rows without it.
  CoefficientTarget target(const JpegFrame& frame, int row, int16_t* tiles) const;
};

// The box is one of the grid's pixels.
McuWindow mcu_window(const JpegFrame& frame, const SampleGrid& grid, const Box& box);
inline McuWindow mcu_window(const JpegFrame& frame, const Box& box) {
  return mcu_window(frame, sample_grid(frame, 1), box);
}

// Tiles of a row of blocks of a component, over so many columns of MCUs.
inline size_t tiles_across(const JpegComponent& component, size_t columns) {
  return tiles_of(columns * static_cast<size_t>(component.h));
}

}  // namespace penstock
