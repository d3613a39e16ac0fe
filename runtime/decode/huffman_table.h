// Lookup tables for Huffman decoding, made from a table of the file.
//
//   HuffmanTable table;
//   if (!table.build(spec, HuffmanTable::Kind::ac)) ...      // a table that libjpeg-turbo refuses
//   uint64_t entry = table.pairs[bits >> (64 - HuffmanTable::lookup_bits)];
//
// One lookup by the next `lookup_bits` bits gives a whole coefficient (zero run, value, and how many bits that took),
//   where code and value bits fit; `pairs` gives two where both fit. What does not fit has an entry 0 and takes the
//   slow way through symbol(), code by code.
// Counting coefficients: decoders keep `next`, the zigzag number of the next coefficient, 1 to 64 within a block. An
//   entry's advance is run + 1 (its coefficient is number next + run), 16 for a run of sixteen zeros, `end_advance` for
//   the end of the block. So after adding it, the coefficient just decoded has number next - 1, and a block has ended
//   when next >= 64. Malformed data may bring it to 79, as in libjpeg-turbo, where such coefficients count as the 64th.
// Semantics: jdhuff.c of libjpeg-turbo 2.1.5, jpeg_make_d_derived_tbl and decode_mcu.
// Thread-safety: a value; build() writes, everything else reads.
#pragma once

#include <array>
#include <cstdint>

#include "runtime/decode/baseline_frame.h"

namespace penstock {

struct HuffmanTable {
  enum class Kind : uint8_t { dc, ac };
  static constexpr int lookup_bits = 11;
  static constexpr int lookup_size = 1 << lookup_bits;
  static constexpr int end_advance = 96;
  static constexpr int max_advance_in_pair = 16 + end_advance;

  // Fields of an entry of `single`: bits 0..5 bits taken, 8..15 advance (ac only), 16..31 value.
  std::array<uint32_t, lookup_size> single;
  // Fields of an entry of `pairs` (ac only): bits 0..5 bits taken by both, 8..15 advance to the first, 16..23 advance
  // to the second, counted from the same start, 32..47 value of the first, 48..63 of the second. Where there is only
  // one, both are the same. Only to be used while next <= 47: otherwise the first may end the block.
  std::array<uint64_t, lookup_size> pairs;

  bool build(const HuffmanSpec& spec, Kind kind);

  // The next code of `bits` (left-aligned): its length, 0 if there is no such code, and its symbol.
  int symbol(uint64_t bits, int& value) const {
    if (const unsigned code = codes_[bits >> (64 - lookup_bits)]; code != 0) {
      value = static_cast<int>(code & 255);
      return static_cast<int>(code >> 8);
    }
    for (int length = lookup_bits + 1; length <= 16; ++length) {
      const auto code = static_cast<int32_t>(bits >> (64 - length));
      if (code <= max_code_[static_cast<size_t>(length)]) {
        value = values_[static_cast<size_t>(code + offset_[static_cast<size_t>(length)]) & 255];
        return length;
      }
    }
    return 0;
  }

 private:
  std::array<uint16_t, lookup_size> codes_;  // length * 256 + symbol, 0 for longer codes
  std::array<int32_t, 17> max_code_;         // -1: no code of this length
  std::array<int32_t, 17> offset_;
  std::array<uint8_t, 256> values_;
};

// The value of `size` bits, JPEG's way: a first bit of 0 means negative.
inline int extend_value(unsigned bits, int size) {
  return size == 0                   ? 0
         : bits < (1U << (size - 1)) ? static_cast<int>(bits) - static_cast<int>((1U << size) - 1)
                                     : static_cast<int>(bits);
}

}  // namespace penstock
