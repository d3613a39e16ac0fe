// The loops from coefficients to RGB rows; the best version for this CPU is chosen at run time. Used by
// own_jpeg_decoder.cpp only. Thread-safety: functions without state. Failure: none.
//
// Results equal jpeg_math.h, value by value; `reference::` has the same functions as plain loops.
// Memory: reads and writes may overrun what is asked for by up to `kJpegRowPadding` bytes or samples, before (reads of
//   rows to upsample: one) and after; callers leave that room.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/decode/row_sink.h"

namespace penstock {

inline constexpr size_t kJpegRowPadding = 64;

// Tiles (coefficient_tiles.h) of one row of blocks to 8 rows of samples, 32 a tile. `quant` is in natural order.
// Nothing is written past 32 * tiles in a row.
void idct_tiles(const int16_t* tiles, size_t count, const uint16_t* quant, uint8_t* out, size_t out_stride);
// The same to 4 rows of 16 samples a tile, 2 rows of 8, 1 row of 4.
void idct_tiles_4x4(const int16_t* tiles, size_t count, const uint16_t* quant, uint8_t* out, size_t out_stride);
void idct_tiles_2x2(const int16_t* tiles, size_t count, const uint16_t* quant, uint8_t* out, size_t out_stride);
void idct_tiles_1x1(const int16_t* tiles, size_t count, const uint16_t* quant, uint8_t* out);

// Samples [0, count) of a row to 2 * count: 2x1. in[-1] and in[count] must exist; at the image's borders they repeat
// the border.
void upsample_2x1(const uint8_t* in, size_t count, uint8_t* out);
// The same with rows: 2x2. `far` is the row above for the upper output row, below for the lower.
void upsample_2x2(const uint8_t* near, const uint8_t* far, size_t count, uint8_t* out);
// Columns only: 1x2. bias: 1 for the upper output row, 2 for the lower.
void upsample_1x2(const uint8_t* near, const uint8_t* far, int bias, size_t count, uint8_t* out);

// `count` pixels to interleaved RGB; and to planes.
void ycc_row_to_rgb(const uint8_t* y, const uint8_t* cb, const uint8_t* cr, size_t count, uint8_t* rgb);
void ycc_row_to_planes(const uint8_t* y, const uint8_t* cb, const uint8_t* cr, size_t count, const PlanarRow& to);
void grey_row_to_rgb(const uint8_t* grey, size_t count, uint8_t* rgb);

// The instruction set in use: "AVX3", "AVX2", "SSE4", ...
const char* jpeg_kernel_target();

namespace reference {
void idct_tiles(const int16_t* tiles, size_t count, const uint16_t* quant, uint8_t* out, size_t out_stride);
void idct_tiles_4x4(const int16_t* tiles, size_t count, const uint16_t* quant, uint8_t* out, size_t out_stride);
void idct_tiles_2x2(const int16_t* tiles, size_t count, const uint16_t* quant, uint8_t* out, size_t out_stride);
void idct_tiles_1x1(const int16_t* tiles, size_t count, const uint16_t* quant, uint8_t* out);
void upsample_2x1(const uint8_t* in, size_t count, uint8_t* out);
void upsample_2x2(const uint8_t* near, const uint8_t* far, size_t count, uint8_t* out);
void upsample_1x2(const uint8_t* near, const uint8_t* far, int bias, size_t count, uint8_t* out);
void ycc_row_to_rgb(const uint8_t* y, const uint8_t* cb, const uint8_t* cr, size_t count, uint8_t* rgb);
void ycc_row_to_planes(const uint8_t* y, const uint8_t* cb, const uint8_t* cr, size_t count, const PlanarRow& to);
void grey_row_to_rgb(const uint8_t* grey, size_t count, uint8_t* rgb);
}  // namespace reference

}  // namespace penstock
