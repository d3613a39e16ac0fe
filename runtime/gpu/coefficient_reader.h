// The quantised coefficients that a box of a JPEG file depends on, decoded to where a GPU fetches them.
//
//   CoefficientReader reader;                                  // one per thread
//   if (reader.open(bytes, header, box, limits.max_scans)) {   // headers only
//     ... room for reader.bytes() ...
//     if (reader.read(index, room)) ...                        // entropy decoding; or else:
//     reader.forget();
//   }
// Only the MCUs that the box needs, component after component, each a rectangle of blocks in tiles
//   (decode/jpeg/coefficient_tiles.h).
// Failure: false means "not supported" as for decode/jpeg/own_jpeg_decoder.h, and the status is the same: true means
//   that libjpeg-turbo decodes these rows without a word. Whatever is not supported goes the CPU's way.
// Ownership: the file's bytes must outlive read(). Thread-safety: one per thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "runtime/decode/image.h"
#include "runtime/decode/jpeg/coefficient_rows.h"
#include "runtime/decode/jpeg/jpeg_frame.h"
#include "runtime/decode/jpeg/mcu_window.h"
#include "runtime/decode/jpeg/side_index.h"

namespace penstock {

class CoefficientReader {
 public:
  // A component's blocks.
  struct Blocks {
    size_t at = 0;          // int16, from the beginning of all
    size_t row_stride = 0;  // int16, from one row of blocks to the next
    int first_column = 0;   // in blocks of the component
    int first_row = 0;
    int columns = 0;
    int rows = 0;
  };

  // `max_scans`: of the job's limits.
  bool open(EncodedView bytes, const ImageHeader& header, const Box& box, int max_scans);
  const JpegFrame& frame() const noexcept { return frame_; }
  const McuWindow& window() const noexcept { return window_; }
  const Blocks& blocks(int component) const noexcept { return blocks_[static_cast<size_t>(component)]; }
  size_t bytes() const noexcept { return coefficients_ * sizeof(int16_t); }

  // `to` has bytes() bytes, which are written whole. `index`: the file's own, or none.
  bool read(const SideIndex* index, int16_t* to);
  // Nobody reads what was opened: memory that grows with the file goes.
  void forget() { rows_.forget(); }

 private:
  bool read_rows(const SideIndex* index, bool lanes, int16_t* to);

  EncodedView bytes_;
  JpegFrame frame_;
  McuWindow window_;
  std::array<Blocks, 3> blocks_;
  size_t coefficients_ = 0;
  CoefficientRows rows_;
};

}  // namespace penstock
