// Entropy decoding of a baseline scan: bytes to quantised coefficients, one row of MCUs at a time.
//
//   EntropyDecoder decoder;                               // one per thread; keeps tables and memory
//   bool supported = decoder.begin(bytes, frame);
//   supported = supported && decoder.skip(mcus_before) && decoder.read(mcu_columns, target);  // row after row
//   supported = supported && decoder.library_would_stop_without_warning();
// or, with a side index, only what a crop touches:
//   supported = decoder.enter(index.at(n), n * index.interval()) && decoder.skip(few) && decoder.read(columns, target);
//
// Semantics: coefficients equal those of libjpeg-turbo 2.1.5 (jdhuff.c), also where a malformed run leads past a
//   block's end or a DC value leaves 16 bits.
// Failure: false means "not supported" and nothing else: a code that does not exist, data that end too early, a restart
//   marker missing, out of order or with bytes before it. libjpeg-turbo then decides from the start. Everything that
//   makes libjpeg-turbo warn within the rows read is among these, so rows accepted here are rows it decodes quietly.
// Safety: the file's bytes are untrusted: reads stay within them, writes within the target's rows.
// Entering: enter() goes on at another MCU as if it had come there from the start; position() is what it needs to know.
//   A wrong restart point gives garbage or "not supported", but no access outside.
// Seams: rows are read from unstuffed bytes, as decoders with several lanes need them.
// Thread-safety: one per thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/decode/image.h"
#include "runtime/decode/jpeg/huffman_table.h"
#include "runtime/decode/jpeg/jpeg_frame.h"
#include "runtime/decode/jpeg/side_index.h"

namespace penstock {

// Where the coefficients of a row of MCUs go: those of MCUs [first_mcu, end_mcu), for components that have a place. The
// place must be zero beforehand. See coefficient_tiles.h.
struct CoefficientTarget {
  int first_mcu = 0;
  int end_mcu = 0;
  std::array<int16_t*, 3> tiles{};     // nullptr: not wanted
  std::array<size_t, 3> row_stride{};  // int16 from one row of blocks to the next, within the MCU
};

class EntropyDecoder {
 public:
  EntropyDecoder();

  bool begin(EncodedView bytes, const JpegFrame& frame);

  // The number of the next MCU, counted along rows.
  int64_t next_mcu() const noexcept { return next_mcu_; }
  bool skip(int64_t mcus);
  // The next MCUs up to column `end` of their row, into `target`.
  bool read(int end, const CoefficientTarget& target);
  bool position(RestartPoint& point);
  bool enter(const RestartPoint& point, int64_t mcu);

  // libjpeg reads up to eight bytes ahead, and the file's end met there is an error of its own: true if enough bytes or
  // a marker follow the rows read so far. Decoders that stop early must ask.
  bool library_would_stop_without_warning();
  // Whether nothing but the bits that fill the last byte is left before a marker.
  bool at_scan_end();

 private:
  // Left-aligned bits: the next bit of the scan is the highest of `bits`; `count` of them are valid, more may be.
  struct BitState {
    uint64_t bits = 0;
    const uint8_t* next = nullptr;  // the next unstuffed byte not yet in `bits`
    int count = 0;

    void refill();
    // The lowest six bits of `n`: entries of tables may come as they are.
    void take(unsigned n) {
      bits <<= n & 63;
      count -= static_cast<int>(n & 63);
    }
  };
  struct BlockPlan {
    const HuffmanTable* dc = nullptr;
    const HuffmanTable* ac = nullptr;
    int component = 0;
    int across = 0;  // within the MCU
    int down = 0;
  };
  struct CachedTable {
    std::vector<uint8_t> spec;
    HuffmanTable::Kind kind = HuffmanTable::Kind::dc;
    bool valid = false;
    uint64_t used = 0;
    HuffmanTable table;
  };

  const HuffmanTable* table_of(const HuffmanSpec& spec, HuffmanTable::Kind kind);
  void begin_bytes(const uint8_t* raw);
  void more_bytes();
  bool at_segment_end();
  bool restart();
  void give_back_bits();
  bool read_mcus(int begin, int end, const CoefficientTarget* target);
  template <bool store>
  static bool read_block(BitState& state, const BlockPlan& plan, int32_t& prediction, int16_t* block);

  const uint8_t* file_ = nullptr;
  size_t scan_begin_ = 0;
  const uint8_t* raw_ = nullptr;  // stuffed bytes not looked at yet
  const uint8_t* raw_end_ = nullptr;
  std::vector<uint8_t> bytes_;    // unstuffed bytes of the current restart segment, a run of MCUs at a time
  uint8_t* bytes_end_ = nullptr;  // how far they go; beyond lies old data
  // A byte in bytes_ and where it stands in the file, for position(): both before the next bit, and in this run of
  // MCUs.
  const uint8_t* known_ = nullptr;
  const uint8_t* known_raw_ = nullptr;
  bool segment_ended_ = false;  // no more of this segment in raw_
  int marker_ = -1;             // that ended it, at raw_[1]; 0xFF: fill bytes; -1: the end of the file
  BitState state_;
  std::array<int32_t, 3> prediction_{};
  std::array<BlockPlan, 6> plan_;
  size_t blocks_ = 0;
  std::array<int, 3> widths_{};  // blocks of an MCU, across
  int mcu_columns_ = 0;
  int restart_interval_ = 0;
  int until_restart_ = 0;
  int next_restart_ = 0;
  int64_t next_mcu_ = 0;
  int64_t mcus_ = 0;
  std::vector<std::unique_ptr<CachedTable>> cache_;
  uint64_t clock_ = 0;
};

}  // namespace penstock
