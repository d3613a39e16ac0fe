// Colour conversions of decoded samples to RGB, as Pillow's convert("RGB") makes them, or OpenCV's imread.
//
// Integers only, so host and GPU give the same bytes. YCbCr is not here: libjpeg converts it.
// Thread-safety: pure functions.
#pragma once

#include <cstdint>

#include "runtime/base/host_device.h"

namespace penstock {

// (a * b) / 255, rounded: Pillow src/libImaging/ImagingUtils.h, MULDIV255.
PENSTOCK_HOST_DEVICE inline int multiply_255(int a, int b) {
  const int t = a * b + 128;
  return ((t >> 8) + t) >> 8;
}

// Four-component JPEG files hold inverted CMYK by Adobe's convention; Pillow assumes it for every one ("CMYK;I") and
// then converts as in Convert.c, cmyk2rgb. `cmyk` is what libjpeg gives as JCS_CMYK, still inverted.
PENSTOCK_HOST_DEVICE inline void inverted_cmyk_to_rgb(const uint8_t* cmyk, uint8_t* rgb) {
  const int k = cmyk[3];
  for (int c = 0; c < 3; ++c) {
    const int v = k - multiply_255(255 - cmyk[c], k);
    rgb[c] = static_cast<uint8_t>(v < 0 ? 0 : v);
  }
}

// The same by OpenCV: the product is cut off, not rounded, and the file's numbers are taken as they stand (imgcodecs,
// CMYK to BGR).
PENSTOCK_HOST_DEVICE inline void inverted_cmyk_to_rgb_opencv(const uint8_t* cmyk, uint8_t* rgb) {
  const int k = cmyk[3];
  for (int c = 0; c < 3; ++c) rgb[c] = static_cast<uint8_t>(k - (((255 - cmyk[c]) * k) >> 8));
}

// CMYK as TIFF files hold it.
PENSTOCK_HOST_DEVICE inline void cmyk_to_rgb(const uint8_t* cmyk, uint8_t* rgb) {
  const uint8_t inverted[4] = {static_cast<uint8_t>(255 - cmyk[0]), static_cast<uint8_t>(255 - cmyk[1]),
                               static_cast<uint8_t>(255 - cmyk[2]), static_cast<uint8_t>(255 - cmyk[3])};
  inverted_cmyk_to_rgb(inverted, rgb);
}

// 16-bit grey: Pillow 9.4 opens it as 32-bit integers (mode I) and clips them (Convert.c, i2rgb); it does not scale.
PENSTOCK_HOST_DEVICE inline uint8_t clip_grey16(int v) {
  return v > 255 ? uint8_t{255} : static_cast<uint8_t>(v);
}

}  // namespace penstock
