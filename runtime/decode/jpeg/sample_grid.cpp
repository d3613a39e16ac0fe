#include "runtime/decode/jpeg/sample_grid.h"

namespace penstock {

SampleGrid sample_grid(const JpegFrame& frame, int reduction) {
  SampleGrid grid;
  const int luma = 8 / reduction;
  grid.width = reduced_size(frame.width, reduction);
  grid.height = reduced_size(frame.height, reduction);
  grid.mcu_width = luma * frame.max_h;
  grid.mcu_height = luma * frame.max_v;
  for (int c = 0; c < frame.components; ++c) {
    const auto i = static_cast<size_t>(c);
    const JpegComponent& component = frame.component[i];
    int block = luma;
    while (block < 8 && grid.mcu_width % (component.h * block * 2) == 0 &&
           grid.mcu_height % (component.v * block * 2) == 0) {
      block *= 2;
    }
    grid.block[i] = block;
    const int across = frame.max_h * 8;
    const int down = frame.max_v * 8;
    grid.component_width[i] = (frame.width * component.h * block + across - 1) / across;
    grid.component_height[i] = (frame.height * component.v * block + down - 1) / down;
  }
  if (frame.components == 3) {
    grid.doubles_columns = grid.block[1] < grid.mcu_width;
    grid.doubles_rows = grid.block[1] < grid.mcu_height;
  }
  grid.interpolates = luma > 1;
  return grid;
}

}  // namespace penstock
