// What a GPU has to know of a file to decode its entropy: the blocks of an MCU, and Huffman tables.
//
//   EntropyTables tables;                          // one per thread; keeps memory
//   if (!tables.make(frame)) ...                   // a table that libjpeg-turbo refuses
//   for (const EntropyTables::Codes* codes : tables.codes()) places.push_back(...);    // in a batch, by codes->key
//   tables.write_mcu_blocks(places, part.mcu_block);  // the blocks name their tables by place
//
// Most files of a set have the tables of the standard, or of one encoder's: those used last are kept from file to file.
// Ownership: the frame's file must outlive make() only; codes() are good until the next make().
// Thread-safety: one per thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "runtime/decode/image.h"
#include "runtime/decode/jpeg/huffman_table.h"
#include "runtime/decode/jpeg/jpeg_frame.h"
#include "runtime/gpu/batch_layout.h"

namespace penstock {

class EntropyTables {
 public:
  struct Codes {
    HuffmanCodes codes;
    // A checksum of what the table was made of: equal tables have equal keys, and others may too.
    uint64_t key = 0;
  };

  bool make(const JpegFrame& frame);
  // The blocks of one MCU.
  size_t blocks() const noexcept { return blocks_.size(); }
  // Each table once.
  std::span<const Codes* const> codes() const noexcept { return codes_; }
  // The MCU's blocks, in order, as a GPU is told: `table_at` has a place for each of codes().
  void write_mcu_blocks(std::span<const uint64_t> table_at, McuBlock* mcu_blocks) const;

 private:
  struct Block {
    uint32_t component = 0;
    uint32_t across = 0;
    uint32_t down = 0;
    size_t dc = 0;  // of codes_
    size_t ac = 0;
  };
  struct Kept : Codes {
    std::vector<uint8_t> spec;
    bool valid = false;
    uint64_t used = 0;  // by which file last
  };
  static constexpr size_t kMostKept = 32;  // a file has up to six

  size_t number_of(const HuffmanSpec& spec, HuffmanCodes::Kind kind);
  const Kept& kept(const HuffmanSpec& spec, HuffmanCodes::Kind kind);

  std::vector<Block> blocks_;
  std::vector<const Codes*> codes_;
  std::vector<std::unique_ptr<Kept>> kept_;
  uint64_t file_ = 0;
  bool sound_ = true;
};

// Planners leave larger files to the CPU, as decode/jpeg/indexed_rows.cpp does: a GPU counts their bytes in 32 bits.
inline constexpr size_t kLargestScannedFile = size_t{1} << 28;

// The first marker of a scan from `from` on; false: the file ends before, or fill bytes stand there.
bool find_marker(EncodedView file, size_t from, size_t& marker);

}  // namespace penstock
