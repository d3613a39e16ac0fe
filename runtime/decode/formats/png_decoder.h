// PNG regions through libspng.
//
// Semantics: pixels are those of Pillow 9.4's Image.open(...).convert("RGB"): alpha and tRNS are dropped, 16-bit colour
//   keeps its high byte, 16-bit grey is clipped to 255 (mode I; see color_math.h), small grey depths are scaled, gamma
//   is ignored; a palette index without an entry is a grey of that value, as in Pillow's initial palette. With OpenCV's
//   conversion (libpng's as imread asks for it) 16-bit grey keeps its high byte, and such an index is black.
// Rows below the box are not read, so the status covers the data chunks that hold rows 0 to the box's last (all rows
//   of an interlaced image); its columns do not matter. Checksum errors before the pixels are errors, also in chunks
//   that are ignored otherwise, and none after that is; a file that ends behind the last byte needed is good: as in
//   Pillow.
// Limits: size and pixels by read_header; ancillary chunks, compressed or not, may not take more than a few MiB;
//   inflating stops with the last row.
// Thread-safety: one per thread. Failure: SampleStatus; Error(runtime) when memory runs out.
#pragma once

#include <vector>

#include "runtime/decode/image.h"

namespace penstock {

class PngDecoder {
 public:
  SampleStatus decode(EncodedView bytes, const ImageHeader& header, const Box& box, PixelBuffer& storage,
                      PixelView& pixels) {
    return decode(bytes, header, box, false, storage, pixels);
  }
  // A mask's numbers, as numpy.array(Image.open(...)) gives them, each three times: indices of a palette, grey values.
  SampleStatus decode_mask(EncodedView bytes, const ImageHeader& header, const Box& box, PixelBuffer& storage,
                           PixelView& pixels) {
    return decode(bytes, header, box, true, storage, pixels);
  }

 private:
  SampleStatus decode(EncodedView bytes, const ImageHeader& header, const Box& box, bool mask, PixelBuffer& storage,
                      PixelView& pixels);
  SampleStatus attempt(EncodedView bytes, const ImageHeader& header, const Box& box, bool mask, PixelBuffer& storage,
                       PixelView& pixels, bool& in_chunks);

  std::vector<uint8_t> raw_;  // one row as the file has it, or the whole of an interlaced image
};

std::string png_library_version();

// The EXIF block that ImageMagick writes as text ("Raw profile type exif"), where such a text stands before the pixels.
std::vector<std::byte> png_exif_profile(EncodedView bytes);

}  // namespace penstock
