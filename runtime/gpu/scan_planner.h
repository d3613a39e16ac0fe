// What a GPU needs to decode the entropy of a file without an index or restart markers: its scan's bytes, and rounds of
// sync_kernel.h.
//
//   ScanPlanner scan;                                           // one per thread; keeps memory
//   if (scan.plan(bytes, frame, window, subsequence_bytes)) {   // else: entropy decoding stays with the CPU
//     ... room for scan.bytes(), scan.tables() and scan.subsequences() records; a launch for each of scan.rounds() ...
//     scan.copy_bytes(room);
//   }
// The bytes are those from the scan's beginning to the file's end, or to the first marker where the file does not end
//   in one: what a camera hangs behind a picture stays here. Nothing of them is looked at otherwise. Where a restart
//   interval has all that the window needs, they are those of the first.
// Rounds: the first decodes all subsequences from where they may begin, then pairs of rounds go on with every second
//   group of them, first of one, then of more (kSyncRounds). Codes that have not found their way by then leave the
//   picture to the CPU: gpu/README.md has how many rounds photos take.
// Failure: plan() is false for progressive files, above 256 MB, and where restart markers stand before the window's end
//   (mcu_run_planner.h).
// Ownership: the file must outlive the plan. Thread-safety: one per thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/decode/image.h"
#include "runtime/decode/jpeg/jpeg_frame.h"
#include "runtime/decode/jpeg/mcu_window.h"
#include "runtime/gpu/batch_layout.h"
#include "runtime/gpu/entropy_tables.h"

namespace penstock {

// Subsequences of a group, by pair of rounds.
inline constexpr uint32_t kSyncRounds[] = {1, 1, 8, 8, 64, 64};

class ScanPlanner {
 public:
  struct Round {
    uint32_t units = 0;
    uint32_t group = 1;
    uint32_t first = 0;  // group
    uint32_t step = 1;   // groups
    bool assumed = false;
  };

  bool plan(EncodedView bytes, const JpegFrame& frame, const McuWindow& window, uint32_t subsequence_bytes);

  size_t bytes() const noexcept { return bytes_.size(); }
  void copy_bytes(std::byte* to) const;
  uint32_t subsequence_bytes() const noexcept { return subsequence_bytes_; }
  uint32_t subsequences() const noexcept { return subsequences_; }
  uint32_t blocks() const noexcept { return blocks_; }  // up to the last row that the CPU would read
  const std::vector<Round>& rounds() const noexcept { return rounds_; }
  const EntropyTables& tables() const noexcept { return tables_; }

 private:
  void list_rounds();

  EncodedView bytes_;
  uint32_t subsequence_bytes_ = 0;
  uint32_t subsequences_ = 0;
  uint32_t blocks_ = 0;
  std::vector<Round> rounds_;
  EntropyTables tables_;
};

}  // namespace penstock
