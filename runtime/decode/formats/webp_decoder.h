// WebP: still images, and the first frame of animated ones, through libwebp.
//
// Semantics: pixels and statuses are those of Pillow 9.4, which uses the same library (WebPAnimDecoder): alpha is
//   dropped, an animation's canvas is black where its first frame does not reach.
// The status covers the first frame whole and the list of all frames, whatever the box. Limits: sizes by the header,
//   and again by what libwebp reads; the library's own memory is at most 8 bytes a pixel.
// A component that a build can leave out (PENSTOCK_WEBP in CMake): then read_header refuses WebP files and says so.
// Thread-safety: one per thread. Failure: SampleStatus; Error(runtime) when memory runs out.
#pragma once

#include <string>
#include <vector>

#include "runtime/decode/image.h"

namespace penstock {

SampleStatus read_webp_header(EncodedView bytes, const DecodeLimits& limits, ImageHeader& header);

class WebpDecoder {
 public:
  SampleStatus decode(EncodedView bytes, const ImageHeader& header, const Box& box, PixelBuffer& storage,
                      PixelView& pixels);

 private:
  std::vector<uint8_t> rgba_;  // of a frame with alpha
};

std::string webp_library_version();  // empty: left out

}  // namespace penstock
