// From blocks in the scan's order, wherever each lies, to the tiles of a row of MCUs.
//
//   ZigzagRow row;
//   row.begin(frame, layout, columns);
//   for (...) row.add(block);                 // all blocks of the row's MCUs, MCU by MCU
//   row.write(target);                        // what the target names, whole tiles
//
// Thread-safety: one per thread. It points to the blocks, which must outlive write().
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/decode/jpeg/entropy.h"
#include "runtime/decode/jpeg/jpeg_frame.h"
#include "runtime/decode/jpeg/lane_tables.h"
#include "runtime/decode/jpeg/mcu_window.h"

namespace penstock {

// Makes DC values of the differences in blocks that follow each other in the scan, from block `mcu_block` of an MCU on;
// modulo 2^32, as entropy.h.
void add_dc_predictions(int16_t* blocks, size_t count, const LaneLayout& layout, size_t& mcu_block,
                        std::array<int32_t, 3>& dc);

class ZigzagRow {
 public:
  void begin(const JpegFrame& frame, const LaneLayout& layout, size_t columns);
  void add(const int16_t* block) {
    places_[place_of_[turn_] + column_ * step_of_[turn_]] = block;
    if (++turn_ == blocks_) {
      turn_ = 0;
      ++column_;
    }
  }
  // All blocks of an MCU, which follow each other; where an MCU begins.
  void add_mcu(const int16_t* blocks) {
    for (size_t b = 0; b < blocks_; ++b) places_[place_of_[b] + column_ * step_of_[b]] = blocks + 64 * b;
    ++column_;
  }
  void write(const CoefficientTarget& target) const;

 private:
  const JpegFrame* frame_ = nullptr;
  size_t blocks_ = 0;  // of an MCU
  size_t columns_ = 0;
  std::array<size_t, 6> place_of_{};    // of the first MCU's block, in places_
  std::array<size_t, 6> step_of_{};     // from an MCU's to the next one's
  std::vector<const int16_t*> places_;  // row after row of blocks, each filled up to whole tiles
  size_t turn_ = 0;
  size_t column_ = 0;
};

}  // namespace penstock
