// How many samples and pixels become of a JPEG file's blocks where it is decoded at full size, 1/2, 1/4 or 1/8.
//
//   const SampleGrid grid = sample_grid(frame, 2);
//   grid.block[1];           // samples of a block of Cb, across and down: 8 of a 4:2:0 file, whose luma has 4 then
//   grid.width, grid.height  // of the image
//
// Source of the rules: libjpeg-turbo 2.1.5, jdmaster.c (jpeg_calc_output_dimensions) and jdsample.c (jinit_upsampler):
//   the reduced image has ceil(size / reduction) pixels; chroma's blocks are made larger than luma's as far as that
//   saves upsampling both ways at once; at 1/8 what is still to be upsampled is repeated, not interpolated.
// Thread-safety: pure functions.
#pragma once

#include <array>

#include "runtime/decode/jpeg/jpeg_frame.h"

namespace penstock {

// Sides of images decoded at 1/reduction.
inline constexpr int reduced_size(int size, int reduction) {
  return (size + reduction - 1) / reduction;
}

struct SampleGrid {
  int width = 0;
  int height = 0;
  int mcu_width = 0;  // pixels
  int mcu_height = 0;
  std::array<int, 3> block{};            // 8, 4, 2 or 1
  std::array<int, 3> component_width{};  // samples, without the padding to whole blocks
  std::array<int, 3> component_height{};
  bool doubles_columns = false;  // chroma has half as many as the image
  bool doubles_rows = false;
  bool interpolates = false;  // where it is doubled

  // Whether a row of pixels depends on two rows of chroma.
  bool interpolates_rows() const noexcept { return doubles_rows && interpolates; }
};

// reduction: 1, 2, 4 or 8.
SampleGrid sample_grid(const JpegFrame& frame, int reduction);

}  // namespace penstock
