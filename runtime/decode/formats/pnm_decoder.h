// PBM, PGM and PPM (P1 to P6) regions.
//
// Semantics: pixels and statuses are those of Pillow 9.4's PpmImagePlugin, quirks included: samples are scaled to 255
//   by maxval and rounded half to even; grey with a maxval above 255 is clipped to 255, not scaled (mode I); plain text
//   that ends early in the middle of a line repeats its last number. Pillow's own kinds (P0CMYK, PyP, ...) are refused.
// The status covers the whole file: every row's bytes must be there, whatever the box.
// Thread-safety: one per thread. Failure: SampleStatus; Error(runtime) when memory runs out.
#pragma once

#include <vector>

#include "runtime/decode/image.h"

namespace penstock {

SampleStatus read_pnm_header(EncodedView bytes, const DecodeLimits& limits, ImageHeader& header);

class PnmDecoder {
 public:
  SampleStatus decode(EncodedView bytes, const ImageHeader& header, const Box& box, PixelBuffer& storage,
                      PixelView& pixels);

 private:
  std::vector<uint8_t> samples_;  // of a plain file, one byte each
};

}  // namespace penstock
