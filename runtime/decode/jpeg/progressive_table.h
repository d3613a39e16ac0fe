// One lookup table for the Huffman codes of one scan of a progressive file.
//
//   ProgressiveTable table;
//   if (!table.build(spec, HuffmanTable::Kind::ac, low, refine)) ...     // a table that libjpeg-turbo refuses
//   uint32_t entry = table.entries[bits >> (64 - ProgressiveTable::kLookupBits)];
//
// Fields of an entry of a first pass:
//   bits 0..5    bits taken: the code and the bits of its value
//   bits 8..15   zeros before the coefficient; kEndOfBlock + r: end of a run of 2^r blocks, and r more bits
//   bits 16..31  the value, at the place of the scan's lowest bit; 0 for a run of sixteen zeros and the end of a block
// An entry of a refining scan, whose next lookup waits for the zeros and not for the bits taken:
//   bits 0..5    zeros before the coefficient; r
//   bits 8..13   bits taken
//   bit 14       the end of a run
//   bits 16..31  the value
// 0: a longer code, or none; slow_entry() then finds such an entry, and what is not a code or no value of the scan.
// A first pass: values that would not fit into 16 bits are none. A refining one: values are 1 or -1.
// Thread-safety: a value; build() writes, everything else reads.
#pragma once

#include <array>
#include <cstdint>

#include "runtime/decode/jpeg/huffman_table.h"

namespace penstock {

struct ProgressiveTable {
  static constexpr int kLookupBits = 10;
  static constexpr unsigned kEndOfBlock = 80;  // more than any zeros lead to: 63 and 15 more
  static constexpr uint32_t kEnds = 1U << 14;

  std::array<uint32_t, size_t{1} << kLookupBits> entries;
  HuffmanCodes codes;
  int low = 0;
  bool refines = false;

  bool build(const HuffmanSpec& spec, HuffmanCodes::Kind kind, int low_bit, bool refine);

  // For the next code of `bits` (left-aligned), whatever its length. 0: not supported.
  uint32_t slow_entry(uint64_t bits) const;

 private:
  bool entry_of(int length, int symbol, uint32_t& entry, int& size) const;
};

}  // namespace penstock
