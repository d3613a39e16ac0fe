// The header segments of a JPEG file, one by one, into a JpegFrame: what jpeg_frame.cpp and progressive_scans.cpp
// have in common. For these two alone.
//
//   size_t at = begin_of_segments;
//   while (next_segment(bytes, at, marker, segment)) switch (marker) ... default: reader.take(marker, segment) ...
//
// Strict, as jpeg_frame.h says: false is "not supported".
// Thread-safety: a value.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "runtime/decode/image.h"
#include "runtime/decode/jpeg/jpeg_frame.h"

namespace penstock {

// A marker segment's contents, read in order; `good` turns false at the first read past its end and stays so.
struct Segment {
  const uint8_t* at = nullptr;
  size_t left = 0;
  bool good = true;

  unsigned u8() {
    if (left == 0) {
      good = false;
      return 0;
    }
    --left;
    return *at++;
  }
  unsigned u16() {
    const unsigned high = u8();
    return high << 8 | u8();
  }
  const uint8_t* take(size_t n) {
    if (left < n) {
      good = false;
      return nullptr;
    }
    const uint8_t* const here = at;
    at += n;
    left -= n;
    return here;
  }
};

// The marker that stands at `at`, and its contents; `at` goes behind them. An end-of-image marker has none. False: no
// marker here (libjpeg warns of bytes between them), or one that is cut short.
bool next_segment(EncodedView bytes, size_t& at, unsigned& marker, Segment& segment);

struct FrameReader {
  JpegFrame& frame;
  std::array<std::array<uint16_t, 64>, 4> quant{};
  std::array<bool, 4> has_quant{};
  std::array<int, 3> id{};
  std::array<int, 3> quant_of{};
  bool has_frame = false;
  bool jfif = false;
  bool adobe = false;
  int adobe_transform = 0;

  // Tables, restart intervals, APPn and comments: what may stand before any scan, of any kind of file. Others are
  // false.
  bool take(unsigned marker, Segment s);
  bool start_of_frame(Segment s);
  // The table that a component has now, which libjpeg keeps for it from its first scan on.
  bool take_quant_table(size_t component);
  // Once the first scan begins: sampling, colour space, sizes.
  bool lay_out();

 private:
  bool quant_tables(Segment s);
  bool huffman_tables(Segment s);
  bool restart_interval(Segment s);
  bool app0(Segment s);
  void app14(Segment s);
  bool is_ycc() const;
};

}  // namespace penstock
