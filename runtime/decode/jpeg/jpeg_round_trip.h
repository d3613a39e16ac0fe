// What an image loses by being kept as JPEG: encoded and decoded again, as torchvision's and Pillow's encoders do it.
//
//   jpeg_round_trip(image, 75, bytes);
//
// Semantics: libjpeg-turbo's defaults at a quality of 1 to 100, chroma at half the size both ways, baseline tables; then
//   decoded as jpeg_decoder.h's reference does. Neither side of the image may be above kLargestJpegSide.
// Ownership: `file` is the caller's, and keeps its memory from image to image. Thread-safety: pure but for that.
// Failure: Error(runtime) without memory; an image that is too large for the format is Error(usage).
#pragma once

#include <cstddef>
#include <vector>

#include "runtime/decode/image.h"

namespace penstock {

inline constexpr int kLargestJpegSide = 65500;  // libjpeg's JPEG_MAX_DIMENSION

void jpeg_round_trip(PixelBuffer& image, int quality, std::vector<std::byte>& file);

}  // namespace penstock
