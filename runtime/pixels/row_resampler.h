// Both passes of a resize on rows that come one by one: never more than a band of them is kept.
//
//   RowResampler rows;                                       // one per thread; keeps its memory
//   rows.begin(across, down, {.data = out_chw, .mirror_x = true});
//   for (int y = 0; y < needed_rows; ++y) ... = rows.row(y); // from down.begin() on, columns from across.begin() on
//   rows.finish();
//
// Sixteen rows are resampled across together (resample_kernels.h); a row of the result is made as soon as the last row
//   that it needs is there. So what lies between decoding and the result stays in the nearest caches, and memory does
//   not grow with the picture's height.
// A size that does not change has taps as well, each of one pixel with all the weight: they copy.
// Ownership: the taps outlive finish(). Thread-safety: one per thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/base/aligned_bytes.h"
#include "runtime/decode/row_sink.h"
#include "runtime/pixels/resample_kernels.h"
#include "runtime/pixels/resample_taps.h"

namespace penstock {

// Where the result goes: planes, or interleaved rows; the latter are not mirrored.
struct ResampleTarget {
  uint8_t* data = nullptr;
  bool planar = true;
  bool mirror_x = false;
  bool mirror_y = false;
};

class RowResampler final : public RowSink {
 public:
  void begin(const Taps& across, const Taps& down, const ResampleTarget& target);
  PlanarRow row(int y) override;
  void finish();

 private:
  void start();
  void take_band();
  void make_room();
  void write_row(int y);

  const Taps* across_ = nullptr;
  const Taps* down_ = nullptr;
  ResampleTarget target_;
  PlanarBand band_;
  BandPlan plan_;
  QuadRows quads_;
  AlignedBytes band_memory_;
  AlignedBytes quad_memory_;
  AlignedBytes scratch_;
  AlignedBytes line_;       // a row of the result in planes, where it is to be interleaved
  size_t row_offset_ = 0;   // of the first column that is needed, in a band's row
  int first_row_ = 0;       // of the input: the first that is needed
  int band_row_ = 0;        // of the input: the band's first
  int filled_ = 0;          // rows of the band, from its beginning
  int group_capacity_ = 0;  // of quads_
  int first_group_ = 0;     // of the input, in quads_
  int next_ = 0;            // row of the result
};

}  // namespace penstock
