// Where decoded rows go, one after the other, as planes, when nobody needs them all at once.
//
//   for (int y = 0; y < box.height; ++y) {
//     const PlanarRow to = sink.row(y);      // takes what was written before
//     ...                                    // writes the row
//   }
//
// Rows come in order, from one thread; a decoder may begin again at row 0. Whoever gave the sink has it take the last
// row.
// Memory: the sink's, good until the next row() of it; `kRowSinkPadding` bytes more than the row's may be written.
#pragma once

#include <cstddef>
#include <cstdint>

namespace penstock {

inline constexpr size_t kRowSinkPadding = 64;

struct PlanarRow {
  uint8_t* red = nullptr;
  uint8_t* green = nullptr;
  uint8_t* blue = nullptr;
};

class RowSink {
 public:
  virtual PlanarRow row(int y) = 0;

 protected:
  ~RowSink() = default;
};

}  // namespace penstock
