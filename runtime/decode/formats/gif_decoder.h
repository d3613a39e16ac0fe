// GIF: the first frame.
//
// Semantics: pixels and statuses are those of Pillow 9.4's GifImagePlugin and GifDecode.c. The canvas is the screen,
//   widened to what the first frame covers; where the frame does not reach it shows the transparent colour's entry, or
//   entry 0. Transparency is dropped, an index without an entry is a grey of that value.
// Code of our own, because giflib and Pillow judge damaged files differently. Pillow reads a file in pieces of 64 KiB,
//   and what follows an end code counts where the next piece exists: so does it here.
// The status covers the whole first frame, whatever the box. Limits: sizes by the header; nothing else is allocated.
// Thread-safety: one per thread. Failure: SampleStatus; Error(runtime) when memory runs out.
#pragma once

#include <vector>

#include "runtime/decode/image.h"

namespace penstock {

SampleStatus read_gif_header(EncodedView bytes, const DecodeLimits& limits, ImageHeader& header);

class GifDecoder {
 public:
  SampleStatus decode(EncodedView bytes, const ImageHeader& header, const Box& box, PixelBuffer& storage,
                      PixelView& pixels);

 private:
  std::vector<uint8_t> indices_;  // of the frame
};

}  // namespace penstock
