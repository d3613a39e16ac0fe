// Colour operations on whole images: what Pillow's ImageEnhance, ImageOps and convert do, byte for byte.
//
//   adjust_contrast(image, 1.3F);
//   equalize(image);
//   adjust_sharpness(image, 2.0F, scratch);
//
// All work in place on interleaved RGB. Where an output byte depends on the input byte alone, a table of 256 does it;
// the per-pixel arithmetic is in color_math.h. Thread-safety: pure functions on the caller's image. Failure: none, but
// for memory.
#pragma once

#include <array>
#include <cstdint>

#include "runtime/decode/image.h"
#include "runtime/pixels/image_types.h"

namespace penstock {

using ByteTable = std::array<uint8_t, 256>;
using ChannelOrder = std::array<uint8_t, 3>;

// Tables of the operations that map each byte by itself.
ByteTable brightness_table(float factor);
ByteTable posterize_table(int bits);         // keeps the highest `bits` (0 to 8)
ByteTable solarize_table(double threshold);  // inverts values at or above it
ByteTable invert_table();

void map_bytes(PixelBuffer& image, const ByteTable& table);

// Image.convert("L"), three times.
void grayscale(PixelBuffer& image);

// ImageEnhance.Contrast, Color, Sharpness; the factor is 1 for no change.
void adjust_contrast(PixelBuffer& image, float factor);
void adjust_saturation(PixelBuffer& image, float factor);
void adjust_sharpness(PixelBuffer& image, float factor, PaintScratch& scratch);

// torchvision's adjust_hue on a PIL image: the 8-bit hue of Pillow's HSV moves by `shift` 255ths of a turn, modulo 256.
void shift_hue(PixelBuffer& image, uint8_t shift);
// The shift of torchvision's hue factor (-0.5 to 0.5): np.uint8(factor * 255), towards zero.
uint8_t hue_shift(double factor);

// Channel c becomes what channel from[c] was: torchvision's permute_channels.
void permute_channels(PixelBuffer& image, const ChannelOrder& from);

// ImageOps.autocontrast and ImageOps.equalize, each channel by itself.
void autocontrast(PixelBuffer& image);
void equalize(PixelBuffer& image);

}  // namespace penstock
