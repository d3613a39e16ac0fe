// EXIF orientation: where files keep it, and turning pixels.
//
//   header.orientation = exif_orientation(bytes, header.format);     // 1 to 8; 1: not to be turned, or nothing said
//   const Box stored = stored_box(box, header);                      // the box's place in the file's pixels
//   turn(pixels, header.orientation, turned);                        // ... decode `stored`, then turn it as EXIF says
//
// Semantics: PIL.ImageOps.exif_transpose of Pillow 9.4. Read: JPEG's first APP1 segments that begin with "Exif", PNG's
//   eXIf chunk or else the text "Raw profile type exif", WebP's EXIF chunk. Values outside 1 to 8 mean nothing.
//   OpenCV's imread (of 4.x) reads neither the text nor WebP's.
// Thread-safety: pure functions. A file that cannot be walked is not turned (1): whether it is bad is the
//   decoder's status.
#pragma once

#include <cstdint>

#include "runtime/decode/image.h"

namespace penstock {

uint8_t exif_orientation(EncodedView bytes, ImageFormat format, ColourConversion as = ColourConversion::pillow);

// The part of the file's image that becomes `box` of the oriented one.
Box stored_box(const Box& box, const ImageHeader& header);

// Pillow's transpositions: 2 mirrors, 3 is half a turn, 4 flips, 5 transposes, 6 turns clockwise, 7 transposes across,
// 8 turns anticlockwise.
void turn(const PixelView& stored, uint8_t orientation, PixelBuffer& oriented);

}  // namespace penstock
