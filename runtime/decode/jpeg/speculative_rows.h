// Coefficients of a crop's rows of MCUs without an index, decoded in lanes (entropy_lanes.h) all the same.
//
//   SpeculativeRows rows;                            // one per thread; keeps tables and memory
//   bool supported = rows.begin(bytes, frame, {first_mcu, end_mcu}, first_row, end_row, {}, notes);
//   rows.read_row(row, target)                       // row after row: read, not supported, or ended:
//   rows.hand_over(bytes, entropy)                   // then the EntropyDecoder goes on
//
// How: the scan's bytes are cut into as many chunks as there are lanes, and every lane starts at its chunk's first bit
//   as if an MCU began there. That is wrong, but Huffman codes find their way: after a while the lane stands where
//   right decoding would, between the same two symbols of the same block of an MCU, and from there on all it does is
//   right. Whether and where, the chunk before tells: its lane goes on past its end, and where it comes to a place
//   that the next lane noted, with the same number of the coefficient and of the block in the MCU, the two are one
//   from there on, as decoding depends on nothing else but the DC predictions, which are differences until the end.
//     lane 0  |=========================>|====+                     right from the beginning
//     lane 1                             |~~~~+==================>|===+          ~ wrong, = right, + same place noted
//     lane 2                                                      |~~~+=====...
// So what is taken over is, symbol by symbol, what entropy.h would have decoded. Lanes that meet what is no code while
//   they are wrong start anew at the next byte; one that is right and meets it: not supported.
// Source: self-synchronising parallel Huffman decoding of JPEG, A. Weissenberger and B. Schmidt, "Accelerating JPEG
//   Decompression on GPUs" (arXiv 2111.09219); S. T. Klein and Y. Wiseman (2003).
// It begins at the scan's first MCU, or at any other whose restart point is known. On the way it notes restart points
//   of the MCUs that `notes` wants: the lanes' places are logged anyway, some symbols before each MCU, and a few single
//   steps lead from there to its first bit.
// Bands: a chunk has at most `kChunkBytes`; larger files are decoded band after band, each beginning at the MCU where
//   the last one ended. Of a row that they share, the blocks that the crop needs are kept.
// Status: as entropy.h's for the rows read, or "not supported" more often: where too few bytes remain behind the rows
//   to know that libjpeg-turbo would stop without a warning, blocks of very few bytes, overfull blocks. Callers then
//   decode with entropy.h from the start.
// Failure: begin() is false where lanes are no use: restart markers, few bytes.
// Memory: about 250 KB a lane.
// Thread-safety: one per thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/decode/image.h"
#include "runtime/decode/jpeg/entropy.h"
#include "runtime/decode/jpeg/entropy_lanes.h"
#include "runtime/decode/jpeg/jpeg_frame.h"
#include "runtime/decode/jpeg/lane_tables.h"
#include "runtime/decode/jpeg/mcu_window.h"
#include "runtime/decode/jpeg/restart_point_notes.h"
#include "runtime/decode/jpeg/zigzag_rows.h"

namespace penstock {

class SpeculativeRows final : private LaneFeeder {
 public:
  enum class Row : uint8_t { read, ended, unsupported };

  static constexpr size_t kChunkBytes = 8 << 10;
  static constexpr size_t kSmallestChunk = 512;

  SpeculativeRows();

  // From the MCU `from` on, which is none behind the first that the rows need; its restart point is `point`.
  struct Start {
    int64_t mcu = 0;
    RestartPoint point;
  };
  // `notes` (or nullptr) outlives the rows.
  bool begin(EncodedView bytes, const JpegFrame& frame, McuColumns columns, int first_row, int end_row,
             const Start& from, RestartPointNotes* notes);
  // Rows in order, from first_row on. `ended`: no more rows are decoded here than those before, and the MCUs of this
  // one up to that which hand_over() goes on with; the target's tiles hold those of them that are wanted, and zeros.
  Row read_row(int row, const CoefficientTarget& target);
  // After `ended`: `entropy` stands where decoding here has ended. False: not supported.
  bool hand_over(EncodedView bytes, EntropyDecoder& entropy);

 private:
  static constexpr size_t kLaneBlocks = 1792;
  static constexpr size_t kSpareBlocks = 128;  // for going on past a chunk's end
  static constexpr size_t kLaneBytes = (kLaneBlocks + kSpareBlocks + 2) * 128;
  // For meeting, some hundred are enough; for restart points, so many as a lane's chunk takes.
  static constexpr size_t kNotedPlaces = 640;
  static constexpr size_t kNotedLookups = 15360;
  static constexpr int kMostStepsToRestartPoint = 64;

  // Blocks one after the other in the right order.
  struct Run {
    uint32_t block = 0;  // as LanePlace::block
    size_t blocks = 0;
  };
  // Where an MCU begins that a lane came to by single steps.
  struct Stepped {
    uint32_t block = 0;
    uint32_t bit = 0;
  };
  struct Lane {
    uint32_t end_bit = 0;
    uint32_t started_anew = 0;  // the block where it last did; 0: never
    LaneEnd end;
    size_t notes = 0;  // in the log
  };

  bool feed(size_t lane, const LaneEnd* end, LaneUnit& unit) override;
  Row read_band();
  void take_bytes(size_t most);
  bool join_lanes();
  bool step(LanePlace& place, size_t lane);
  bool go_to_end(LanePlace& place, size_t lane, uint32_t from);
  void add_run(uint32_t from, uint32_t to);
  void add_predictions();
  bool find_restart_point(size_t run, size_t blocks, RestartPoint& point);
  size_t last_note_before(size_t lane, uint32_t block);
  template <class Visit>
  void visit_blocks(int64_t first, int64_t end, const Visit& visit);
  void clean();
  const int16_t* block(uint32_t at) const { return coefficients_.data() + at / 2; }
  static uint32_t first_block(size_t lane) { return static_cast<uint32_t>(kLaneScratchBytes + lane * kLaneBytes); }

  size_t count_;  // of lanes
  size_t noted_places_of_all_;
  const uint8_t* file_ = nullptr;
  size_t file_size_ = 0;
  const JpegFrame* frame_ = nullptr;
  LaneTables tables_;
  LaneLayout layout_;
  McuColumns columns_;
  int end_row_ = 0;
  size_t wanted_end_ = 0;  // bytes of the file up to which lanes are used
  size_t bands_ = 0;       // still to come

  // Where decoding stands: the first bit of MCU `mcu_`.
  size_t raw_ = 0;
  uint8_t bit_ = 0;
  int64_t mcu_ = 0;
  std::array<int32_t, 3> dc_{};
  RestartPointNotes* notes_ = nullptr;

  // Where the band began; and where looking for its restart points has come to.
  size_t band_raw_ = 0;
  uint8_t band_bit_ = 0;
  size_t stuffed_before_ = 0;
  std::vector<Stepped> stepped_;
  size_t note_lane_ = 0;
  size_t note_ = 0;
  float notes_per_block_ = 0;

  std::vector<uint8_t> bytes_;  // unstuffed, from raw_ on
  size_t bytes_used_ = 0;
  std::vector<uint32_t> stuffed_;  // which of them are 0xFF, and have a zero behind them in the file
  std::array<Lane, kMostLanes> lanes_{};
  LaneLog log_;
  std::vector<int16_t> coefficients_;             // all zero between bands
  std::array<uint32_t, kMostLanes> dirty_end_{};  // of each lane's blocks
  std::vector<Run> runs_;
  int64_t band_mcu_ = 0;  // the MCU that the runs begin with
  size_t run_ = 0;        // where read_row() has come to
  size_t in_run_ = 0;
  size_t passed_ = 0;  // blocks before that place
  bool ended_ = false;
  std::vector<int16_t> kept_;  // blocks of a row that earlier bands began
  ZigzagRow zigzag_;
};

}  // namespace penstock
