// Coefficients of the rows of MCUs that a crop needs, from a side index, decoded in lanes (entropy_lanes.h).
//
//   IndexedRows rows;                                          // one per thread; keeps tables and memory
//   bool supported = rows.begin(bytes, frame, index, {first_mcu, end_mcu}, first_row, end_row);
//   for (int row = first_row; supported && row < end_row; ++row) supported = rows.read_row(row, target);
//
// The runs of MCUs between restart points that the crop touches are what the lanes take, each at its beginning and no
//   further than its last needed MCU, several rows at a time (as many as keep their coefficients near the CPU).
// Status: as with entropy.h and an index: every run of MCUs that is read to its end, and the last one always is, must
//   end at just the bit and the DC predictions that the next restart point names, so an index of another file is found
//   out. The last run of MCUs of a scan must end right before a marker.
// Failure: begin() is false where lanes are of no use: restart markers, a file above 256 MB, restart points that are
//   far apart. read_row() is false for "not supported", as in entropy.h.
// Memory: about `kBandBytes` of coefficients, more only where the runs of MCUs of one row have more; and the bytes of
//   its runs of MCUs. An index is untrusted: what it asks for is bounded by the file's size and `kMostScratchBytes`.
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
#include "runtime/decode/jpeg/side_index.h"
#include "runtime/decode/jpeg/zigzag_rows.h"

namespace penstock {

class IndexedRows final : private LaneFeeder {
 public:
  static constexpr size_t kBandBytes = size_t{384} << 10;
  static constexpr size_t kMostScratchBytes = size_t{64} << 20;

  // The index fits the frame, and outlives the rows.
  bool begin(EncodedView bytes, const JpegFrame& frame, const SideIndex& index, McuColumns columns, int first_row,
             int end_row);
  // The next row, in order. Tiles that the target names are written whole.
  bool read_row(int row, const CoefficientTarget& target);

 private:
  // MCUs from a restart point on.
  struct McuRun {
    size_t point = 0;
    int64_t first_mcu = 0;
    int mcus = 0;
    bool whole = false;    // up to the next point, or the scan's end
    size_t block = 0;      // where its first block is, in coefficients_; one more than it has is its own
    uint32_t end_bit = 0;  // of bytes_; where a whole one must end
    RestartPoint from;
    RestartPoint to;  // the next one, where there is one
  };

  bool feed(size_t lane, const LaneEnd* end, LaneUnit& unit) override;
  void choose_band(int first_row);
  bool read_band(int first_row);
  void add_row(int row);
  size_t blocks_of(const McuRun& mcu_run) const { return static_cast<size_t>(mcu_run.mcus) * layout_.blocks + 1; }
  bool ends_at_point(const McuRun& mcu_run) const { return mcu_run.point + 1 < index_->size(); }
  bool add_bytes(McuRun& mcu_run, LaneUnit& unit);
  bool accept(const McuRun& mcu_run, const LaneEnd& end);
  int16_t* block(size_t n) { return coefficients_.data() + kLaneScratchBytes / sizeof(int16_t) + n * 64; }

  const uint8_t* file_ = nullptr;
  size_t file_size_ = 0;
  const JpegFrame* frame_ = nullptr;
  const SideIndex* index_ = nullptr;
  McuColumns columns_;
  int end_row_ = 0;
  int band_end_ = 0;  // rows before it are decoded
  bool supported_ = false;
  LaneTables tables_;
  LaneLayout layout_;
  std::vector<McuRun> mcu_runs_;
  std::array<size_t, kMostLanes> of_lane_{};
  size_t given_ = 0;
  size_t next_in_band_ = 0;     // the run of MCUs that read_row() has come to
  std::vector<uint8_t> bytes_;  // unstuffed
  size_t bytes_used_ = 0;
  std::vector<int16_t> coefficients_;
  ZigzagRow row_;
};

}  // namespace penstock
