// Which runs of MCUs of a file a GPU has to decode for a window of MCUs, by the file's index or its restart markers;
// and their bytes.
//
//   McuRunPlanner mcu_runs;                                     // one per thread; keeps memory
//   if (mcu_runs.plan(bytes, frame, index, window)) {           // else: entropy decoding stays with the CPU
//     ... room for mcu_runs.mcu_runs(), .bytes() and .tables() ...
//     mcu_runs.copy_bytes(room);
//   }
// By an index the runs of MCUs are those of decode/jpeg/indexed_rows.h: from the last restart point before a row's
//   first wanted MCU to its last wanted one, and the very last to its end, so that an index of another file is found
//   out.
// At restart markers they are all from the scan's beginning to the window's last row, as the CPU reads them: some
//   intervals each, where they are short. Markers are looked at here, their order and number; that codes end where one
//   stands is the GPU's to see.
// Their bytes are copied as they are in the file, neighbouring ones in one range.
// Failure: plan() is false where the CPU's vector lanes would not go by the index either (restart markers, a
//   progressive file, an index that is none of the file's or does not reach so far), and where the index asks for
//   impossible places, or for more bytes than a run's MCUs can have: a GPU's thread ends soon, whatever the file.
//   plan_at_restarts() is where there are none before the window's end, where one is missing or in wrong order, where
//   fill bytes stand before one, and where intervals are too long for a thread.
// Ownership: file and index must outlive the plan. Thread-safety: one per thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/decode/image.h"
#include "runtime/decode/jpeg/jpeg_frame.h"
#include "runtime/decode/jpeg/mcu_window.h"
#include "runtime/decode/jpeg/side_index.h"
#include "runtime/gpu/batch_layout.h"
#include "runtime/gpu/entropy_tables.h"

namespace penstock {

class McuRunPlanner {
 public:
  bool plan(EncodedView bytes, const JpegFrame& frame, const SideIndex* index, const McuWindow& window);
  bool plan_at_restarts(EncodedView bytes, const JpegFrame& frame, const McuWindow& window);

  const std::vector<GpuMcuRun>& mcu_runs() const noexcept { return mcu_runs_; }
  size_t bytes() const noexcept { return bytes_; }
  void copy_bytes(std::byte* to) const;
  const EntropyTables& tables() const noexcept { return tables_; }

 private:
  struct ByteRange {  // of the file
    size_t begin = 0;
    size_t end = 0;
  };
  bool begin(EncodedView bytes, const JpegFrame& frame, int64_t mcus_of_a_thread);
  void add_row(int row);
  bool place(size_t number);

  EncodedView file_;
  const JpegFrame* frame_ = nullptr;
  const SideIndex* index_ = nullptr;
  McuColumns columns_;
  std::vector<GpuMcuRun> mcu_runs_;
  std::vector<ByteRange> ranges_;
  size_t bytes_ = 0;
  EntropyTables tables_;
};

}  // namespace penstock
