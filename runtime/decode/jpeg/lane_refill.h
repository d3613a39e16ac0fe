// What vector lanes keep in memory while some of them change their runs of MCUs, and how those get their next ones.
//
//   LaneRefill rest;
//   rest.feed_all(feeder);
//   while (rest.busy != 0) {
//     ... load, decode until `ended` lanes are through, store bit, block, next and mcu_block ...
//     rest.feed_ended(feeder, ended, failed);
//   }
//
// As in LanePlace, but for `mcu_block`, the block's number. Of an idle lane: its run of MCUs is over, and no bit is
// past its end. Thread-safety: of one thread. Ownership: numbers only. Failure: none; the feeder hears what became of
// each run of MCUs.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "runtime/decode/jpeg/entropy_lanes.h"

namespace penstock {

struct alignas(64) LaneRefill {
  uint32_t bit[kMostLanes] = {};
  uint32_t end_bit[kMostLanes] = {};
  uint32_t block[kMostLanes] = {};
  uint32_t end_block[kMostLanes] = {};
  uint32_t next[kMostLanes] = {};
  uint32_t mcu_block[kMostLanes] = {};
  uint32_t busy = 0;  // lanes with a run of MCUs, a bit each

  void feed_all(LaneFeeder& feeder) {
    for (size_t lane = 0; lane < kMostLanes; ++lane) feed(feeder, lane, nullptr);
  }
  // `failed`: of those, lanes whose bits were no code.
  void feed_ended(LaneFeeder& feeder, uint32_t ended, uint32_t failed) {
    for (; ended != 0; ended &= ended - 1) {
      const auto lane = static_cast<size_t>(std::countr_zero(ended));
      LaneEnd end{LaneEnd::Why::all_blocks, {bit[lane], block[lane], next[lane], 4 * mcu_block[lane]}};
      if (bit[lane] > end_bit[lane]) end.why = LaneEnd::Why::past_end;
      if ((failed >> lane & 1) != 0) end.why = LaneEnd::Why::failed;
      feed(feeder, lane, &end);
    }
  }

 private:
  void feed(LaneFeeder& feeder, size_t lane, const LaneEnd* end) {
    LaneUnit unit;
    next[lane] = mcu_block[lane] = 0;
    if (!feeder.feed(lane, end, unit)) {
      busy &= ~(1U << lane);
      bit[lane] = block[lane] = end_block[lane] = 0;
      end_bit[lane] = ~0U;
      return;
    }
    busy |= 1U << lane;
    bit[lane] = unit.bit;
    end_bit[lane] = unit.end_bit;
    block[lane] = unit.out_byte;
    end_block[lane] = unit.out_byte + unit.blocks * kBlockBytes;
  }
};

}  // namespace penstock
