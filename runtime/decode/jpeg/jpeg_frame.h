// What the headers of a JPEG file say, for our own decoder.
//
//   JpegFrame frame;                         // of a progressive file: progressive_scans.h makes it
//   if (read_baseline_frame(bytes, frame)) { ... frame.scan_begin is where the entropy-coded data starts ... }
//
// Strict on purpose: read_baseline_frame() is true only for a file whose headers libjpeg-turbo accepts without error
//   and without warning, and whose kind our decoder handles by a single scan: Huffman, sequential, 8 bits, grey or
//   YCbCr with chroma subsampled by at most 2 each way. Everything else (progressive, arithmetic, CMYK, RGB, other
//   factors, several scans, tables missing, bytes between markers, unusual component numbers, ...) is false, which
//   means "not supported", never "bad file": libjpeg then gives pixels or status.
// Safety: all reads are bounded by `bytes`; the frame points into them, so they must outlive it.
// Thread-safety: a pure function.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "runtime/decode/image.h"

namespace penstock {

struct JpegComponent {
  int h = 1;  // blocks in an MCU, across and down; a grey image has one block, whatever its factors
  int v = 1;
  int width = 0;  // samples, without the padding to whole blocks
  int height = 0;
  int dc_table = 0;
  int ac_table = 0;
  std::array<uint16_t, 64> quant{};  // in natural order
};

// A Huffman table as the file has it: 16 counts of codes by length, then as many values. nullptr: none.
struct HuffmanSpec {
  const uint8_t* bytes = nullptr;
  int values = 0;
};

struct JpegFrame {
  int width = 0;
  int height = 0;
  int components = 0;  // 1: grey; 3: YCbCr
  std::array<JpegComponent, 3> component;
  int max_h = 1;
  int max_v = 1;
  int mcu_columns = 0;
  int mcu_rows = 0;
  int row_group = 1;         // libjpeg reads so many MCU rows at a time (grey images with a vertical factor)
  int restart_interval = 0;  // MCUs; 0: none; a progressive file may change it from scan to scan
  bool progressive = false;  // no scan of its own then: progressive_scans.h
  std::array<HuffmanSpec, 4> dc;
  std::array<HuffmanSpec, 4> ac;
  size_t scan_begin = 0;
};

bool read_baseline_frame(EncodedView bytes, JpegFrame& frame);

// Our arithmetic, here and on GPUs, is that of libjpeg-turbo's x86 code; the library's own differs on extreme files
// where the CPU is another.
#if defined(__x86_64__) || defined(__i386__) || defined(_M_X64)
inline constexpr bool kJpegArithmeticIsTheLibrarys = true;
#else
inline constexpr bool kJpegArithmeticIsTheLibrarys = false;
#endif

}  // namespace penstock
