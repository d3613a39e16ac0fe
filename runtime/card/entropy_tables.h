// What a card has to know of a file to decode its entropy: the blocks of an MCU, and Huffman tables.
//
//   EntropyTables tables;                          // one per thread; keeps memory
//   if (!tables.make(frame)) ...                   // a table that libjpeg-turbo refuses
//   tables.turns(), tables.codes()                 // the blocks name their tables by number
//
// Ownership: the frame's file must outlive make() only. Thread-safety: one per thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/card/batch_layout.h"
#include "runtime/decode/huffman_table.h"
#include "runtime/decode/image.h"
#include "runtime/decode/jpeg_frame.h"

namespace penstock {

class EntropyTables {
 public:
  bool make(const JpegFrame& frame);
  // Of one MCU, in order.
  const std::vector<CardTurn>& turns() const noexcept { return turns_; }
  const std::vector<CodeTable>& codes() const noexcept { return codes_; }

 private:
  uint32_t number_of(const HuffmanSpec& spec, HuffmanCodes::Kind kind);

  std::vector<CardTurn> turns_;
  std::vector<CodeTable> codes_;
  std::vector<const uint8_t*> known_;  // by table: the specification it was made of
  bool sound_ = true;
};

// Planners leave larger files to the CPU, as decode/indexed_rows.cpp does: a card counts their bytes in 32 bits.
inline constexpr size_t largest_scanned_file = size_t{1} << 28;

// The first marker of a scan from `from` on; false: the file ends before, or fill bytes stand there.
bool find_marker(EncodedView file, size_t from, size_t& marker);

}  // namespace penstock
