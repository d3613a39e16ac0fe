// Lookup tables for entropy decoding in lanes (entropy_lanes.h): all tables of an image in one array, so that
// every lane can gather from another one.
//
//   LaneTables tables;                                  // one per thread; keeps what many files share
//   LaneLayout layout;
//   if (!tables.lay_out(frame, layout)) ...             // a table that libjpeg-turbo refuses
//
// One lookup by the next `kLookupBits` bits gives a whole coefficient, or two that are neighbours in zigzag order, or a
//   coefficient and the end of its block. Fields of an entry:
//     bits  0..5   bits taken, all in all; below 32
//          6..10   bits taken where the second does not count
//         11       open: the value's bits are not among those looked up; then bits 32..47 are their mask
//         12       not here: a longer code, or none: ask codes(number). Its advance leads past the block's end
//         15       there is or may be a second
//         16..23   advance to the first: run + 1; 1 for an end of block, 16 for sixteen zeros. Twice that, in bytes
//         24..31   advance to the second, all in all, or kBlockEnd; in bytes
//         32..47   value of the first
//         48..63   value of the second
//   An entry of zeros takes nothing and stores nothing; table 0 is made of them.
// Thread-safety: lay_out() writes, everything else reads.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/decode/jpeg/huffman_table.h"
#include "runtime/decode/jpeg/jpeg_frame.h"

namespace penstock {

// The blocks of an MCU in the scan's order: component, and tables, four bits a block, the first block lowest.
struct LaneLayout {
  uint32_t dc_tables = 0;
  uint32_t ac_tables = 0;
  uint32_t blocks = 0;
  std::array<uint8_t, 6> component{};
};

class LaneTables {
 public:
  static constexpr int kLookupBits = 10;
  static constexpr size_t kLookupSize = size_t{1} << kLookupBits;
  static constexpr int kMostBits = 19;        // that an entry takes: three of them, what a fetch gives
  static constexpr size_t kMostTables = 16;   // with table 0: numbers have four bits
  static constexpr uint32_t kBlockEnd = 128;  // wherever in the block, this leads to its end
  static constexpr uint32_t kOpenEntry = 1U << 11;
  static constexpr uint32_t kLongEntry = 1U << 12;
  static constexpr uint32_t kPairEntry = 1U << 15;

  // The lower half of an entry for a symbol alone.
  static constexpr uint32_t entry_of(uint32_t bits, uint32_t run, bool ends) {
    const uint32_t advance = ends ? 2 : 2 * (run + 1);
    return bits | bits << 6 | advance << 16 | (ends ? kBlockEnd : advance) << 24;
  }

  LaneTables();

  bool lay_out(const JpegFrame& frame, LaneLayout& layout);

  const uint64_t* entries() const noexcept { return entries_.data(); }
  const HuffmanCodes& codes(size_t number) const { return tables_[number]->codes; }

 private:
  struct Table {
    std::vector<uint8_t> spec;
    bool valid = false;
    uint64_t used = 0;  // by which image last
    HuffmanCodes codes;
  };

  // Its number. One that is new takes the place of the one unused longest, where all are taken.
  size_t number_of(const HuffmanSpec& spec, HuffmanCodes::Kind kind);
  void fill_entries(size_t number);
  void pair_entries(uint64_t* entries);

  std::vector<uint64_t> entries_;
  std::vector<std::unique_ptr<Table>> tables_;
  uint64_t image_ = 0;
  std::vector<uint64_t> single_;  // a table's entries before they are paired
};

}  // namespace penstock
