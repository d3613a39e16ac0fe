// The vector loops of resampling; the best version for this CPU is chosen at run time. Used by resample.cpp only.
//
// Both passes are the same weighted sum of byte vectors. Down the columns that is immediate: rows are the vectors.
// Along the rows, blocks of rows are transposed first, so that a vector holds one column of many rows, and transposed
// back afterwards; whether the way back gives interleaved RGB or planes, mirrored or not, is only a matter of the
// order. Each coefficient is split into two 16-bit halves (Taps::pairs), whose products are added pairwise; sums may
// wrap on the way because the total fits 32 bits. Results equal resample_value() byte for byte. Memory: sources are
// read exactly within the rows they are given; intermediates are padded by their owner.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/augment/resample_taps.h"
#include "runtime/decode/image.h"

namespace penstock {

// Bytes that one vector store may write past the end of an intermediate row.
inline constexpr size_t resample_row_padding = 64;

// Scratch of a horizontal pass: columns of the source, then of the result.
struct ColumnScratch {
  uint8_t* source = nullptr;  // column_scratch_bytes(taps)
  uint8_t* result = nullptr;  // 48 vectors
};
inline constexpr size_t column_result_bytes = 48 * 64;
size_t column_scratch_bytes(const Taps& taps);

// Where a horizontal pass writes. Interleaved: rows of 3 * width bytes. Planar: three planes. In both, row strides
// leave room for widths rounded up to 16 pixels.
struct RowsOut {
  uint8_t* data = nullptr;
  size_t row_stride = 0;
  size_t plane_stride = 0;  // 0: interleaved
};

// Rows 0 .. rows-1 of `source`, whose column 0 is input column `source_x`. `mirror` reverses the outputs.
void resample_rows(const PixelView& source, int rows, int source_x, const Taps& taps, bool mirror,
                   const ColumnScratch& scratch, const RowsOut& out);

// One output row of `bytes` bytes: the weighted sum of input rows at `first_row`, `row_stride` apart. Reads and writes
// exactly `bytes` of each.
void resample_column(const uint8_t* first_row, size_t row_stride, const int32_t* coefficients, const uint32_t* pairs,
                     int taps, size_t bytes, uint8_t* out);

// `pixels` interleaved RGB to three planes, mirrored or not.
void deinterleave_row(const uint8_t* rgb, int pixels, bool mirror, uint8_t* r, uint8_t* g, uint8_t* b);

// The instruction set in use: "AVX3", "AVX2", "SSE4", ...
const char* resample_target();

}  // namespace penstock
