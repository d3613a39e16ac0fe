// TIFF's first directory: sizes, how pixels are stored, and whether Pillow reads that.
//
//   TiffHeader tiff;
//   SampleStatus status = parse_tiff(bytes, tiff);    // no allocation beyond the directory's small lists
//
// Which combinations of bits, samples, colours and byte orders are read is the table of Pillow 9.4
//   (TiffImagePlugin.OPEN_INFO). Not read, though Pillow does: LAB, uncompressed YCbCr, old-style JPEG, LZMA (whose
//   memory a file can ask for at will), SGI log, and separate planes of anything but 8 bits. EXACTNESS.md has the list.
// Thread-safety: pure function. Failure: SampleStatus.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "runtime/decode/image.h"

namespace penstock {

struct TiffHeader {
  enum class Mode : uint8_t { grey, integer, real, palette, rgb, cmyk, ycbcr };

  // Values of a tag, read on demand.
  struct Values {
    size_t at = 0;  // offset of the first
    uint64_t count = 0;
    unsigned type = 0;
  };

  bool big_endian = false;
  bool big_tiff = false;
  uint64_t width = 0;
  uint64_t height = 0;
  unsigned compression = 1;
  unsigned planar = 1;
  unsigned orientation = 0;

  Mode mode = Mode::grey;
  unsigned bits = 1;      // of a sample
  unsigned samples = 1;   // of a pixel
  bool inverted = false;  // 0 is white
  bool reversed = false;  // the bits of every byte
  bool is_signed = false;
  bool premultiplied = false;

  bool tiled = false;
  uint64_t block_width = 0;  // of a tile, or of a strip
  uint64_t block_height = 0;
  Values offsets;
  std::array<std::array<uint8_t, 3>, 256> colours{};

  size_t pixel_bits() const { return size_t{bits} * samples; }
  uint64_t value(EncodedView bytes, const Values& values, uint64_t index) const;
};

SampleStatus parse_tiff(EncodedView bytes, TiffHeader& tiff);
SampleStatus read_tiff_header(EncodedView bytes, const DecodeLimits& limits, ImageHeader& header);

// The value of tag 0x0112 in the directory of a TIFF-like block, as EXIF has one; 0: none.
unsigned orientation_in_tiff(EncodedView block);

}  // namespace penstock
