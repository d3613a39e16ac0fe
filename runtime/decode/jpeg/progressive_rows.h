// Coefficients of a crop's rows of MCUs of a progressive file.
//
//   ProgressiveRows rows;                                    // one per thread; keeps tables and memory
//   bool supported = rows.read_headers(bytes, limits.max_scans, frame) && rows.begin(frame);
//   for (int row = first_row; supported && row < end_row; ++row) supported = rows.read_row(row, target);
//   supported = supported && rows.finish();
//
// How: the scans do not follow each other over the whole image, as in libjpeg; they go side by side. All of them decode
//   a row of MCUs before any decodes the next one, which is allowed because a scan depends on nothing but its own bits
//   and what earlier scans know of the same blocks. So there are never more coefficients than those of one row, they
//   are near the CPU when the next scan refines them, and what follows is the same as for a baseline file. Of blocks
//   that the crop does not need nothing is kept but which of their coefficients are not zero (progressive_blocks.h).
// Status: libjpeg reads all scans before the first row of pixels, so all are read to their ends here too; finish()
//   reads what lies below the crop. True at the end means that libjpeg-turbo would read the file, whole, without a
//   word.
// Failure: false: not supported, as in entropy.h.
// Memory: the file's bytes (progressive_scans.h), about 9 KB a scan, 8 bytes a block of a row of MCUs.
// Seams: an index would note, every few rows of MCUs, each scan's bit, its end-of-band run and DC predictions: entering
//   is what begin() does, with other numbers. Refining scans need no history of other rows. Only files without a word
//   as a whole may have one, so that finish() can be left out with it.
// Thread-safety: one per thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/decode/image.h"
#include "runtime/decode/jpeg/entropy.h"
#include "runtime/decode/jpeg/jpeg_frame.h"
#include "runtime/decode/jpeg/progressive_blocks.h"
#include "runtime/decode/jpeg/progressive_scans.h"
#include "runtime/decode/jpeg/progressive_table.h"

namespace penstock {

class ProgressiveRows {
 public:
  // False: not a progressive file, or not one that is ours. The frame must outlive the rows.
  bool read_headers(EncodedView bytes, int max_scans, JpegFrame& frame);
  bool begin(const JpegFrame& frame);
  // Rows in rising order. The target's tiles must be zero beforehand.
  bool read_row(int row, const CoefficientTarget& target);
  bool finish();
  // After read_headers(), where nothing follows.
  void forget() { scans_.trim(); }
  size_t kept_bytes() const noexcept { return scans_.kept_bytes(); }

 private:
  bool done(bool supported);
  struct State {
    ProgressiveStream stream;
    std::array<const ProgressiveTable*, 3> tables{};
    std::array<int32_t, 3> prediction{};
    size_t segment = 0;  // which of the scan's it is in
    size_t until_restart = 0;
  };

  bool read_next_row(const CoefficientTarget* target);
  bool read_dc(const ProgressiveScan& scan, State& state, const CoefficientTarget* target);
  bool read_ac(const ProgressiveScan& scan, State& state, const CoefficientTarget* target);
  int blocks_down_in_row(const JpegComponent& component) const;
  void enter_segment(const ProgressiveScan& scan, State& state, size_t segment);
  template <class Read>
  bool by_segments(const ProgressiveScan& scan, State& state, size_t count, const Read& read);

  ProgressiveScans scans_;
  const JpegFrame* frame_ = nullptr;
  int next_row_ = 0;
  std::vector<State> states_;
  std::vector<std::unique_ptr<ProgressiveTable>> tables_;
  // The row's masks, one component and one row of blocks after the other.
  std::vector<uint64_t> masks_;
  std::array<uint64_t*, 3> masks_of_{};  // nullptr: no scan refines it
};

}  // namespace penstock
