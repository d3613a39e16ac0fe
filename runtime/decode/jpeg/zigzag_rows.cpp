#include "runtime/decode/jpeg/zigzag_rows.h"

#include "runtime/decode/jpeg/coefficient_tiles.h"
#include "runtime/decode/jpeg/entropy_lanes.h"

namespace penstock {
namespace {

alignas(64) constexpr std::array<int16_t, 64> no_block{};

}  // namespace

void add_dc_predictions(int16_t* blocks, size_t count, const LaneLayout& layout, size_t& mcu_block,
                        std::array<int32_t, 3>& dc) {
  for (; count > 0; --count, blocks += 64) {
    int32_t& value = dc[layout.component[mcu_block]];
    value = static_cast<int32_t>(static_cast<uint32_t>(value) + static_cast<uint32_t>(int32_t{blocks[0]}));
    blocks[0] = static_cast<int16_t>(value);
    if (++mcu_block == layout.blocks) mcu_block = 0;
  }
}

void ZigzagRow::begin(const JpegFrame& frame, const LaneLayout& layout, size_t columns) {
  frame_ = &frame;
  blocks_ = layout.blocks;
  columns_ = columns;
  turn_ = column_ = 0;
  size_t row = 0;
  size_t b = 0;
  for (int c = 0; c < frame.components; ++c) {
    const JpegComponent& component = frame.component[static_cast<size_t>(c)];
    for (int down = 0; down < component.v; ++down) {
      for (int across = 0; across < component.h; ++across, ++b) {
        place_of_[b] = row + static_cast<size_t>(across);
        step_of_[b] = static_cast<size_t>(component.h);
      }
      row += tiles_across(component, columns) * kBlocksPerTile;
    }
  }
  places_.assign(row, no_block.data());
}

void ZigzagRow::write(const CoefficientTarget& target) const {
  const int16_t* const* row = places_.data();
  for (size_t c = 0; c < static_cast<size_t>(frame_->components); ++c) {
    const JpegComponent& component = frame_->component[c];
    const size_t tiles = tiles_across(component, columns_);
    for (int down = 0; down < component.v; ++down, row += tiles * kBlocksPerTile) {
      if (target.tiles[c] == nullptr) continue;
      zigzag_blocks_to_tiles(row, tiles, target.tiles[c] + static_cast<size_t>(down) * target.row_stride[c]);
    }
  }
}

}  // namespace penstock
