#include "runtime/decode/jpeg/mcu_window.h"

#include <algorithm>

namespace penstock {

McuWindow mcu_window(const JpegFrame& frame, const SampleGrid& grid, const Box& box) {
  McuWindow window;
  const int last_x = box.x + box.width - 1;
  if (grid.doubles_columns && grid.interpolates) {
    // One sample of chroma on each side.
    window.columns.first = std::max(0, box.x / 2 - 1) / grid.block[1];
    window.columns.end = std::min(grid.component_width[1] - 1, last_x / 2 + 1) / grid.block[1] + 1;
  } else {
    window.columns = {box.x / grid.mcu_width, last_x / grid.mcu_width + 1};
  }
  const int reach = grid.interpolates_rows() ? 2 : 0;
  const int mcu_height = grid.mcu_height;
  const int last_y = box.y + box.height - 1;
  // From the row of MCUs that holds the box's first row, or the row of chroma above it, which that is made of too.
  // libjpeg decodes MCU rows as it needs them, and one more before the last two rows of pixels where it interpolates
  // between rows of chroma.
  window.first_row = std::max(0, box.y - reach) / mcu_height;
  const int rows = (last_y + reach) / mcu_height + 1;
  window.end_row = std::min((rows + frame.row_group - 1) / frame.row_group * frame.row_group, frame.mcu_rows);
  window.first_luma_row = box.y / mcu_height;
  window.end_luma_row = last_y / mcu_height + 1;
  return window;
}

size_t McuWindow::most_coefficients(const JpegFrame& frame) const {
  size_t tiles = 0;
  for (int c = 0; c < frame.components; ++c) {
    const JpegComponent& component = frame.component[static_cast<size_t>(c)];
    tiles += tiles_across(component, columns.count()) * static_cast<size_t>(component.v);
  }
  return tiles * kTileCoefficients;
}

CoefficientTarget McuWindow::target(const JpegFrame& frame, int row, int16_t* tiles) const {
  CoefficientTarget target;
  target.first_mcu = columns.first;
  target.end_mcu = columns.end;
  const bool luma = row >= first_luma_row && row < end_luma_row;
  for (size_t c = luma ? 0 : 1; c < static_cast<size_t>(frame.components); ++c) {
    const JpegComponent& component = frame.component[c];
    target.tiles[c] = tiles;
    target.row_stride[c] = tiles_across(component, columns.count()) * kTileCoefficients;
    tiles += target.row_stride[c] * static_cast<size_t>(component.v);
  }
  return target;
}

}  // namespace penstock
