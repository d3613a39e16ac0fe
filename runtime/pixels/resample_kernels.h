// The vector loops of resampling; the best version for this CPU is chosen at run time. Used by the resample_*.cpp and
// row_resampler.cpp only.
//
// Both passes are the same sum of products, and both work on quads: four bytes of a plane that stand one after the
// other in the direction of the pass, in one 32-bit lane. Along rows, a band of sixteen is transposed by quads, so that
// a vector holds the same four columns of many rows; the results of four columns are four bytes in a lane again, one of
// each of four rows, which is just what the pass down the columns takes. Quads begin at multiples of four of the
// input's columns and rows, and coefficients are padded with zeros to them. Each coefficient is split into parts that
// the CPU's instructions multiply (split_quads); sums may wrap on the way because the total fits 32 bits. Results equal
// resample_value() byte for byte. Thread-safety: functions without state. Failure: none.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/pixels/resample_taps.h"

namespace penstock {

// Rows of three planes. Rows may be read up to `padding` bytes past their last needed column, and there are always
// kResampleBandRows of them; what is in bytes that no tap needs does not matter.
struct PlanarBand {
  static constexpr size_t kPadding = 64;

  const uint8_t* data = nullptr;
  size_t row_stride = 0;
  size_t plane_stride = 0;
  int first_column = 0;  // of the input; a multiple of 4
};
inline constexpr size_t kResampleBandRows = 16;

// Rows of three planes in groups of four: of each column four bytes, one a row. A plane has room for the width rounded
// up to `kColumnsRoundedTo`, and its columns are aligned to 64 bytes.
struct QuadRows {
  static constexpr size_t kColumnsRoundedTo = 64;

  uint8_t* data = nullptr;
  size_t group_stride = 0;
  size_t plane_stride = 0;
};

// Fills the taps' quads from their coefficients.
void split_quads(Taps& taps);

// What the passes along all bands of an image have in common: which outputs share transposed quads, and where each
// begins. `mirror` reverses the outputs.
struct BandPlan {
  struct Four {
    std::array<uint32_t, 4> first_quad;  // of its run
    std::array<uint32_t, 4> words;       // of the taps' quad_words: where the output's begin
    int quads = 0;                       // of the output that has most; what the others lack are zeros
  };
  struct ColumnRun {
    int end_output = 0;
    int first_quad = 0;
    int end_quad = 0;
  };

  bool mirror = false;
  std::vector<ColumnRun> column_runs;
  std::vector<Four> fours;  // outputs 0 to 3, 4 to 7, ...
  size_t scratch_bytes = 0;
};
void plan_band(const Taps& taps, bool mirror, BandPlan& plan);

// The pass along a band's rows: four groups. Scratch is aligned to 64 bytes.
void resample_band(const PlanarBand& band, const Taps& taps, const BandPlan& plan, uint8_t* scratch,
                   const QuadRows& out);

// The pass down the columns: row `i` of the taps' outputs, one plane. `quads`: that plane's columns, from the group on
// that holds the first row. Writes exactly `width` bytes.
void resample_down(const uint8_t* quads, size_t group_stride, const Taps& taps, int i, size_t width, uint8_t* out);

// `pixels` interleaved RGB to three planes, mirrored or not; and back. Exactly these bytes are read and written.
void deinterleave_row(const uint8_t* rgb, int pixels, bool mirror, uint8_t* r, uint8_t* g, uint8_t* b);
void interleave_row(const uint8_t* r, const uint8_t* g, const uint8_t* b, int pixels, uint8_t* rgb);

// The instruction set in use: "AVX3_DL", "AVX2", "SSE4", ...
const char* resample_target();

}  // namespace penstock
