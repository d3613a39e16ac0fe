// BMP regions: 1, 4, 8, 16, 24 and 32 bits, bit fields, run lengths.
//
// Semantics: pixels and statuses are those of Pillow 9.4's BmpImagePlugin, quirks included: a palette that is a ramp of
//   grey is ignored, bits beyond a palette's end are greys, alpha is dropped, and only the bit fields that it knows are
//   accepted. Files without the "BM" header (which Pillow calls DIB) are refused.
// The status covers the whole file: every row's bytes must be there, whatever the box.
// Thread-safety: one per thread. Failure: SampleStatus; Error(runtime) when memory runs out.
#pragma once

#include <vector>

#include "runtime/decode/image.h"

namespace penstock {

SampleStatus read_bmp_header(EncodedView bytes, const DecodeLimits& limits, ImageHeader& header);

class BmpDecoder {
 public:
  SampleStatus decode(EncodedView bytes, const ImageHeader& header, const Box& box, PixelBuffer& storage,
                      PixelView& pixels);

 private:
  std::vector<uint8_t> indices_;  // of a run-length file
};

}  // namespace penstock
