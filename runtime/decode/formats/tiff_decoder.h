// TIFF: the first image, uncompressed by code of our own, compressed through libtiff.
//
// Semantics: pixels and statuses are those of Pillow 9.4, which uses the same library in the same way (TiffImagePlugin,
//   TiffDecode.c): 16-bit grey, 32-bit integers and reals are clipped to 0..255, 16-bit colour keeps its high byte,
//   alpha is dropped (associated alpha divided out first), CMYK is converted without a profile. The orientation tag is
//   obeyed always, as Pillow does (ImageHeader::orientation; Decoder turns the image). tiff_header.h has what is read.
// The status covers the whole first image, whatever the box.
// Limits: sizes of image and tiles by the header; libtiff may take 64 MiB and 16 bytes a pixel at a time.
// A component that a build can leave out (PENSTOCK_TIFF in CMake): then read_header refuses TIFF files and says so.
// Thread-safety: one per thread. Failure: SampleStatus; Error(runtime) when memory runs out.
#pragma once

#include <string>
#include <vector>

#include "runtime/decode/image.h"

namespace penstock {

class TiffDecoder {
 public:
  // `box` and sizes are those of the file's pixels, not turned.
  SampleStatus decode(EncodedView bytes, const ImageHeader& header, const Box& box, PixelBuffer& storage,
                      PixelView& pixels);

 private:
  std::vector<uint8_t> block_;   // a strip or tile
  std::vector<uint8_t> planes_;  // of an image with separate planes, interleaved
  std::vector<uint8_t> row_;
};

std::string tiff_library_version();  // empty: left out

}  // namespace penstock
