// Lookup tables for Huffman decoding, made from a table of the file.
//
//   HuffmanTable table;
//   if (!table.build(spec, HuffmanTable::Kind::ac)) ...      // a table that libjpeg-turbo refuses
//   uint64_t entry = table.pairs[bits >> (64 - HuffmanTable::kLookupBits)];
//
// One lookup by the next `kLookupBits` bits gives a whole coefficient (zero run, value, and how many bits that took),
//   where code and value bits fit; `pairs` gives two where both fit. What does not fit has an entry 0 and takes the
//   slow way through symbol(), code by code.
// Counting coefficients: decoders keep `next`, the zigzag number of the next coefficient, 1 to 64 within a block. An
//   entry's advance is run + 1 (its coefficient is number next + run), 16 for a run of sixteen zeros, `kEndAdvance` for
//   the end of the block. So after adding it, the coefficient just decoded has number next - 1, and a block has ended
//   when next >= 64. Malformed data may bring it to 79, as in libjpeg-turbo, where such coefficients count as the 64th.
// Semantics: jdhuff.c of libjpeg-turbo 2.1.5, jpeg_make_d_derived_tbl and decode_mcu.
// Thread-safety: a value; build() writes, everything else reads.
#pragma once

#include <array>
#include <cstdint>

#include "runtime/base/host_device.h"
#include "runtime/decode/jpeg/jpeg_frame.h"

namespace penstock {

// A table's codes in plain arrays, to decode one at a time: here and on GPUs (gpu/entropy_kernel.h).
struct CodeTable {
  static constexpr int kLookupBits = 11;
  static constexpr int kLookupSize = 1 << kLookupBits;

  uint16_t shorts[kLookupSize];  // length * 256 + symbol, 0 for longer codes
  int32_t max_code[17];          // by length; -1: no code has it
  int32_t offset[17];
  uint8_t values[256];

  // The next code of `bits` (left-aligned): its length, 0 if there is no such code, and its symbol.
  PENSTOCK_HOST_DEVICE int symbol(uint64_t bits, int& value) const {
    if (const unsigned code = shorts[bits >> (64 - kLookupBits)]; code != 0) {
      value = static_cast<int>(code & 255);
      return static_cast<int>(code >> 8);
    }
    for (int length = kLookupBits + 1; length <= 16; ++length) {
      const auto code = static_cast<int32_t>(bits >> (64 - length));
      if (code <= max_code[length]) {
        value = values[(code + offset[length]) & 255];
        return length;
      }
    }
    return 0;
  }
};

// The codes of a table, and decoding one at a time.
class HuffmanCodes {
 public:
  enum class Kind : uint8_t { dc, ac };
  static constexpr int kLookupBits = CodeTable::kLookupBits;
  static constexpr int kLookupSize = CodeTable::kLookupSize;

  // False: a table that libjpeg-turbo refuses.
  bool build(const HuffmanSpec& spec, Kind kind);

  Kind kind() const noexcept { return kind_; }

  const CodeTable& table() const noexcept { return table_; }
  int symbol(uint64_t bits, int& value) const { return table_.symbol(bits, value); }

  // The codes of at most `kLookupBits` bits, in order: visit(code, length, symbol).
  template <class Visit>
  void for_short_codes(const Visit& visit) const {
    for (int length = 1; length <= kLookupBits; ++length) {
      const int32_t end = table_.max_code[length] + 1;
      for (int32_t code = end - counts_[static_cast<size_t>(length)]; code < end; ++code) {
        visit(static_cast<unsigned>(code), length, table_.values[code + table_.offset[length]]);
      }
    }
  }

 private:
  Kind kind_ = Kind::dc;
  CodeTable table_;
  std::array<uint16_t, 17> counts_;
};

struct HuffmanTable {
  using Kind = HuffmanCodes::Kind;
  static constexpr int kLookupBits = HuffmanCodes::kLookupBits;
  static constexpr int kLookupSize = HuffmanCodes::kLookupSize;
  static constexpr int kEndAdvance = 96;
  static constexpr int kMaxAdvanceInPair = 16 + kEndAdvance;

  // Fields of an entry of `single`: bits 0..5 bits taken, 8..15 advance (ac only), 16..31 value.
  std::array<uint32_t, kLookupSize> single;
  // Fields of an entry of `pairs` (ac only): bits 0..5 bits taken by both, 8..15 advance to the first, 16..23 advance
  // to the second, counted from the same start, 32..47 value of the first, 48..63 of the second. Where there is only
  // one, both are the same. Only to be used while next <= 47: otherwise the first may end the block.
  std::array<uint64_t, kLookupSize> pairs;
  HuffmanCodes codes;

  bool build(const HuffmanSpec& spec, Kind kind);

  int symbol(uint64_t bits, int& value) const { return codes.symbol(bits, value); }
};

// The value of `size` bits, JPEG's way: a first bit of 0 means negative.
PENSTOCK_HOST_DEVICE inline int extend_value(unsigned bits, int size) {
  return size == 0                   ? 0
         : bits < (1U << (size - 1)) ? static_cast<int>(bits) - static_cast<int>((1U << size) - 1)
                                     : static_cast<int>(bits);
}

}  // namespace penstock
