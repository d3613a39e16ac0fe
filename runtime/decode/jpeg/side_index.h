// Restart points into the entropy-coded data of one baseline JPEG file, so that a crop need not read what lies before
// it.
//
//   SideIndex index;
//   if (build_side_index(bytes, {}, index)) ...                 // one pass over the whole file
//   decoder.decode(bytes, header, box, storage, pixels, {.index = &index});
//   std::string text = index.serialise();                       // beside the data; SideIndex::read() takes it back
//
// A point stands before every interval-th MCU of the scan: where its first bit is, and the DC predictions there. With
//   one, entropy decoding starts there as if it had come that way.
// Only a file that the decoder takes as its own from the first MCU to the last, and whose scan ends right behind that,
//   gets an index, so decoding with one can meet nothing in what it skips that would have changed the status (design: a
//   status depends on bytes alone), and whoever decodes to the end can tell whether it is the right one.
// A partial index, learned while decoding (learned_index.h), ends somewhere: its last point closes the run of MCUs
//   before it, and what lies behind that is as without an index. It was noted on a way from the first MCU on that
//   libjpeg-turbo would have gone without a word. For a crop that ends before the last point, all that the reference
//   reads lies on that way.
// Size: 7 bytes a point (4 for grey images) and 4 for every 16; unless told, as many points as take one per cent of the
//   file.
//   points   | dc 12 bits x components | bits since the group's base 20 |     packed, little-endian
//   groups   | u32 byte of the file of point 16 g |
// Failure: false, and no index: a file that is not the decoder's, whose points are too far apart for 20 bits, or with
//   DC values beyond 12 bits. read() checks all lengths, and decoding checks positions against the file, so an index
//   that does not belong to the file costs its speed or gives "not supported"; it never reads outside.
// Thread-safety: a value; const functions from any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/decode/image.h"

namespace penstock {

// Where an MCU begins: the byte of the file that holds its first bit (0xFF for a stuffed one), that bit, counted from
// the highest, and the DC predictions.
struct RestartPoint {
  uint32_t byte = 0;
  uint8_t bit = 0;
  std::array<int16_t, 3> dc{};

  friend bool operator==(const RestartPoint&, const RestartPoint&) = default;
};

struct JpegFrame;

class SideIndex {
 public:
  static constexpr int kGroup = 16;

  SideIndex() = default;
  // For points 0, interval, 2 interval, … in order. `partial`: it may have fewer than the file has MCUs for.
  SideIndex(int interval, int components, bool partial = false);

  void reserve(size_t points);
  bool add(const RestartPoint& point);  // false: it cannot be written down, and the index is as before

  bool empty() const noexcept { return count_ == 0; }
  // Whether it can be the index of such a file: as many points as it has MCUs for (no more, if partial), its
  // components, its scan's beginning.
  bool fits(const JpegFrame& frame) const;
  // How many MCUs of a file that it fits, from the first on, lie in runs of MCUs with an end. All of them if it is
  //   complete.
  int64_t closed_mcus(const JpegFrame& frame) const;
  // Those that it has been shown of, whatever is decoded by it, that libjpeg-turbo reads them without a word. Behind a
  // partial index's last point nobody has been, also where the scan ends next.
  int64_t mcus_without_warning(const JpegFrame& frame) const;
  int interval() const noexcept { return interval_; }
  size_t size() const noexcept { return count_; }
  RestartPoint at(size_t n) const;  // n < size()
  size_t bytes() const noexcept { return points_.size() + groups_.size() * sizeof(uint32_t); }

  // Layout: u8 version 1, u8 components, u16 interval, u32 count, groups, points. read() is false where text is none.
  // Not for partial ones, which live in memory.
  std::string serialise() const;
  static bool read(std::span<const std::byte> text, SideIndex& index);

  friend bool operator==(const SideIndex&, const SideIndex&) = default;

 private:
  size_t record_bytes() const noexcept { return components_ == 1 ? 4 : 7; }

  int interval_ = 0;
  int components_ = 0;
  bool partial_ = false;
  size_t count_ = 0;
  std::vector<uint32_t> groups_;
  std::vector<uint8_t> points_;
};

struct SideIndexOptions {
  int interval = 0;  // MCUs between points; 0: as many points as take one per cent of the file, 4 MCUs apart at least
};

// MCUs between points for a file of so many bytes; 0: none is worth it.
int side_index_interval(const SideIndexOptions& options, const JpegFrame& frame, size_t file_bytes);
// The same for an index that is learned: each point costs the decoding that learns it some 100 ns, and up to one and a
// half times as far apart they serve as well.
int learned_interval(const JpegFrame& frame, size_t file_bytes);

bool build_side_index(EncodedView bytes, const SideIndexOptions& options, SideIndex& index);

}  // namespace penstock
