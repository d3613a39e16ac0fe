// The loops of progressive decoding: one scan's share of a row of blocks. The best version for this CPU is chosen at
// run time. For progressive_rows.cpp alone.
//
// Masks: one 64-bit word a block tells which AC coefficients are not zero: coefficient k is bit 63 - k, so that the
//   first of them is the highest, as the first bit of the stream is. All that later scans need to know of a block is in
//   its mask: how many bits they have for it, and which coefficients the runs of zeros lead over. Values are stored for
//   the wanted blocks alone.
// Semantics: jdphuff.c of libjpeg-turbo 2.1.5 for data of which it says nothing; what it takes quietly though it makes
//   no sense (runs that lead out of the band, values beyond 16 bits) is "not supported" as well.
// Failure: false: not supported. The stream's state is useless then.
// Safety: a stream has ProgressiveScans::kPadding readable bytes behind its end. Decoding that is 8 bytes beyond the
//   end stops at the next block at the latest; for less than that, callers check left().
// Thread-safety: pure functions of their arguments.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/decode/jpeg/progressive_table.h"

namespace penstock {

// Left-aligned bits: the next bit of the segment is the highest of `bits`; `count` of them are valid, more may be.
struct ProgressiveStream {
  uint64_t bits = 0;
  const uint8_t* next = nullptr;  // the next byte not yet in `bits`
  const uint8_t* end = nullptr;   // of the segment
  int count = 0;
  uint32_t end_of_band_run = 0;  // blocks to come of which the scan's band has no new coefficients

  // Bits of the segment that are left; negative: bits beyond its end were used.
  std::ptrdiff_t left() const { return (end - next) * 8 + count; }
};

// Blocks [begin, end) of a row of blocks.
struct ProgressiveMcuRun {
  size_t begin = 0;
  size_t end = 0;
  int16_t* tiles = nullptr;  // coefficient_tiles.h, from block `first_wanted` on; nullptr: no block is wanted
  size_t first_wanted = 0;   // blocks [first_wanted, end_wanted) have a place in `tiles`
  size_t end_wanted = 0;
  uint64_t* masks = nullptr;  // of the row, from block 0 on
};

// An AC scan's band.
struct ProgressiveBand {
  const ProgressiveTable* table = nullptr;
  unsigned first = 1;  // coefficients [first, last]
  unsigned last = 63;
  int low = 0;
  bool refined = false;  // later scans need the masks
};

bool read_ac_first(ProgressiveStream& stream, const ProgressiveBand& band, const ProgressiveMcuRun& blocks);
bool read_ac_refinement(ProgressiveStream& stream, const ProgressiveBand& band, const ProgressiveMcuRun& blocks);

// One block of an MCU in a DC scan.
struct ProgressiveDcBlock {
  const ProgressiveTable* table = nullptr;
  int32_t* prediction = nullptr;
  int16_t* tiles = nullptr;  // of its row of blocks; nullptr: not wanted
  size_t step = 1;           // blocks of this row in an MCU
  size_t across = 0;         // which of them it is
  size_t first_wanted = 0;   // blocks [first_wanted, end_wanted) of the row have a place in `tiles`
  size_t end_wanted = 0;
};

// MCUs [begin, end) of a row.
bool read_dc_first(ProgressiveStream& stream, const ProgressiveDcBlock* blocks, size_t count, int low, size_t begin,
                   size_t end);
bool read_dc_refinement(ProgressiveStream& stream, const ProgressiveDcBlock* blocks, size_t count, int low,
                        size_t begin, size_t end);

}  // namespace penstock
