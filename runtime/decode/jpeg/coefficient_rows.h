// The coefficients of a crop's rows of MCUs, by the fastest way that the file and the index allow.
//
//   CoefficientRows rows;                                     // one per thread
//   if (rows.read_frame(bytes, header, limits.max_scans, frame)) ...        // headers only
//   bool supported = rows.with_lanes_or_without([&](bool lanes) {
//     bool supported = rows.begin(bytes, frame, index, window, lanes, notes);  // mcu_window.h
//     for (int row = window.first_row; supported && row < window.end_row; ++row)
//       supported = rows.read_row(row, target);
//     return supported && rows.finish();
//   });
//
//                    | an index                           | none
//   in lanes         | indexed_rows.h, nothing else read  | speculative_rows.h, then entropy.h from where it ends
//   where they are   |                                    |
//     no use         | entropy.h, entered row by row      | entropy.h from the first MCU on
//   progressive file |                                    | progressive_rows.h
// All ways give the same coefficients; they differ in how often they say "not supported" (below).
// An index that cannot be the file's counts as none. From where a partial one ends, rows are decoded as without an
//   index, only not from the first MCU on but from its last point.
// `notes` (or nullptr) hears of the restart points that were passed behind the index's last; they are good if finish()
// is.
// Failure: false means "not supported" (entropy.h).
// Memory: what is kept of a file goes when it is done with: with the last row, when something is not supported, or by
//   forget().
// Thread-safety: one per thread.
#pragma once

#include "runtime/decode/image.h"
#include "runtime/decode/jpeg/entropy.h"
#include "runtime/decode/jpeg/indexed_rows.h"
#include "runtime/decode/jpeg/jpeg_frame.h"
#include "runtime/decode/jpeg/mcu_window.h"
#include "runtime/decode/jpeg/progressive_rows.h"
#include "runtime/decode/jpeg/restart_point_notes.h"
#include "runtime/decode/jpeg/side_index.h"
#include "runtime/decode/jpeg/speculative_rows.h"

namespace penstock {

class CoefficientRows {
 public:
  // False: not a baseline or progressive file of ours, not the header's, or a CPU whose library has another arithmetic.
  bool read_frame(EncodedView bytes, const ImageHeader& header, int max_scans, JpegFrame& frame);
  // The file is not decoded after all.
  void forget() { progressive_.forget(); }
  size_t kept_bytes() const noexcept { return progressive_.kept_bytes(); }  // that grow with the file

  // read(lanes): begin(), rows and finish(). Again without lanes where they may have been what refused the file.
  template <class Read>
  bool with_lanes_or_without(const Read& read) {
    return read(true) || (without_lanes_may_help() && read(false));
  }
  bool begin(EncodedView bytes, const JpegFrame& frame, const SideIndex* index, const McuWindow& window, bool lanes,
             RestartPointNotes* notes = nullptr);
  // The next row, in order. The target's tiles are written whole.
  bool read_row(int row, const CoefficientTarget& target);
  // Whether begin() took the index for the file's.
  bool has_index() const noexcept { return index_ != nullptr; }
  // After the last row: whether libjpeg-turbo would end there without a word, and the index belongs to the file.
  bool finish();

  // Whether lanes were at work that decode less than entropy.h does.
  bool without_lanes_may_help() const noexcept {
    return method_ == RowMethod::speculative || method_ == RowMethod::after_speculation;
  }

 private:
  enum class RowMethod : uint8_t { from_start, index, index_lanes, speculative, after_speculation, progressive };

  bool walk_from(int row);
  bool go_to_columns(int row);
  bool read_columns(int row, const CoefficientTarget& target);
  bool reaches_next_point();
  bool read_on(int row, const CoefficientTarget& target);
  void note_restart_point();

  RowMethod method_ = RowMethod::from_start;
  EncodedView bytes_;
  const JpegFrame* frame_ = nullptr;
  const SideIndex* index_ = nullptr;
  RestartPointNotes* notes_ = nullptr;
  bool lanes_ = false;
  McuColumns columns_;
  int end_row_ = 0;
  int indexed_end_ = 0;  // rows before it are the index's
  EntropyDecoder entropy_;
  IndexedRows indexed_;
  SpeculativeRows speculative_;
  ProgressiveRows progressive_;
};

}  // namespace penstock
