// The scans of a progressive JPEG file: what each one refines, and its bits without stuffing.
//
//   ProgressiveScans scans;                                       // one per thread; keeps memory
//   if (scans.read(bytes, limits.max_scans, frame)) { ... scans.list(), scans.segment(n) ... }
//
// The whole file is walked, from marker to marker up to the end of the image, before anything is decoded.
// Strict as jpeg_frame.h: true only for a file of which libjpeg-turbo's marker reader and scan set-up would say
//   nothing, whose scans come in a legal order, each coefficient's first pass once and its bits one by one, and which
//   knows DC and the first nine AC coefficients of every component to the last bit at the end, as libjpeg smooths
//   blocks otherwise. Everything else is "not supported".
// Source: jdphuff.c (start_pass_phuff_decoder), jdinput.c, jdmarker.c, jdcoefct.c (smoothing_ok) of libjpeg-turbo
//   2.1.5.
// Memory: a copy of the scans' bytes, kept for the next file where it is below `kMostKeptBytes`; 8 bytes a restart
//   segment, at most 8 MB. A file of more scans or segments than these is "not supported".
// Safety: all reads are bounded by `bytes`, which must outlive the list: tables point into it.
// Thread-safety: one per thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/decode/image.h"
#include "runtime/decode/jpeg/jpeg_frame.h"

namespace penstock {

struct ProgressiveScan {
  int components = 0;                   // more than one: interleaved, DC only
  std::array<uint8_t, 3> component{};   // in rising order
  std::array<HuffmanSpec, 3> tables{};  // dc: one a component, unless `high`; ac: the first
  int first = 0;                        // coefficients [first, last] in zigzag order
  int last = 0;
  int high = 0;          // 0: first pass
  int low = 0;           // the bit of the values that this scan brings
  bool refined = false;  // a later scan refines some of these coefficients
  int restart_interval = 0;
  size_t segment = 0;  // the first of its restart segments
  size_t segments = 1;
};

class ProgressiveScans {
 public:
  // Readable bytes behind the last segment.
  static constexpr size_t kPadding = 1024;
  static constexpr size_t kMostScans = 64;
  static constexpr size_t kMostSegments = size_t{1} << 20;  // of all scans together
  static constexpr size_t kMostKeptBytes = size_t{32} << 20;

  bool read(EncodedView bytes, int max_scans, JpegFrame& frame);
  // The file is done with: memory beyond kMostKeptBytes is given back.
  void trim();
  size_t kept_bytes() const noexcept { return bytes_.capacity(); }

  const std::vector<ProgressiveScan>& list() const noexcept { return list_; }
  struct Bits {
    const uint8_t* begin;
    const uint8_t* end;
  };
  Bits segment(size_t n) const {
    const uint8_t* const data = bytes_.data();
    return {data + (n == 0 ? 0 : segment_ends_[n - 1]), data + segment_ends_[n]};
  }

 private:
  bool read_bits(EncodedView file, size_t& at, const JpegFrame& frame, ProgressiveScan& scan);

  std::vector<ProgressiveScan> list_;
  std::vector<uint8_t> bytes_;
  std::vector<size_t> segment_ends_;
};

// Blocks of a component across and down, as a scan of it alone has them: without those that only fill MCUs.
inline int blocks_across(const JpegComponent& component) {
  return (component.width + 7) / 8;
}
inline int blocks_down(const JpegComponent& component) {
  return (component.height + 7) / 8;
}

}  // namespace penstock
