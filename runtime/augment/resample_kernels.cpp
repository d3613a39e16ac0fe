#include "runtime/augment/resample_kernels.h"

#include <algorithm>
#include <cstring>

#include "runtime/augment/resample_math.h"

// Vectors of a fixed size are needed (transposes of 16 x 16 bytes within 128-bit blocks); the size-agnostic targets
// would run, on such machines, the code for their fixed-size siblings.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_RVV)

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/augment/resample_kernels.cpp"
#include <hwy/foreach_target.h>  // compiles the rest of this file once per target
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace penstock {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_SCALAR

// CPUs older than any vector target of this build (x86-64 without SSSE3): the plain loops.
void ResampleRows(const PixelView& source, int rows, int source_x, const Taps& taps, bool mirror,
                  const ColumnScratch& /*scratch*/, const RowsOut& out) {
  const int count = taps.count();
  const size_t x_step = out.plane_stride != 0 ? 1 : 3;
  const size_t c_step = out.plane_stride != 0 ? out.plane_stride : 1;
  for (int y = 0; y < rows; ++y) {
    uint8_t* const to = out.data + static_cast<size_t>(y) * out.row_stride;
    for (int x = 0; x < count; ++x) {
      const int i = mirror ? count - 1 - x : x;
      const auto at = static_cast<size_t>(i);
      const uint8_t* pixel = source.row(y) + static_cast<size_t>(taps.start[at] - source_x) * 3;
      for (size_t c = 0; c < 3; ++c) {
        to[static_cast<size_t>(x) * x_step + c * c_step] =
            resample_value(pixel + c, 3, taps.coefficients(i), taps.size[at]);
      }
    }
  }
}

void ResampleColumn(const uint8_t* first_row, size_t row_stride, const int32_t* coefficients, const uint32_t* /*pairs*/,
                    int taps, size_t bytes, uint8_t* out) {
  for (size_t i = 0; i < bytes; ++i) out[i] = resample_value(first_row + i, row_stride, coefficients, taps);
}

void DeinterleaveRow(const uint8_t* rgb, int pixels, bool mirror, uint8_t* r, uint8_t* g, uint8_t* b) {
  for (int x = 0; x < pixels; ++x) {
    const int to = mirror ? pixels - 1 - x : x;
    r[to] = rgb[static_cast<size_t>(x) * 3];
    g[to] = rgb[static_cast<size_t>(x) * 3 + 1];
    b[to] = rgb[static_cast<size_t>(x) * 3 + 2];
  }
}

size_t ColumnScratchBytes(const Taps& /*taps*/) {
  return 16;
}

#else

// Sums run on vectors of up to 64 bytes, transposes on up to 32: wider ones need shuffles across 128-bit blocks.
using DWide = hn::CappedTag<uint8_t, 64>;
using D8 = hn::CappedTag<uint8_t, 32>;
using V8 = hn::Vec<D8>;
constexpr D8 d8;
constexpr size_t lanes = hn::MaxLanes(D8());

// Two vectors of int16 to one of uint8, saturated, within each 128-bit block (the inverse of InterleaveLower/Upper).
template <class D, class V16>
HWY_INLINE hn::Vec<D> pack_bytes([[maybe_unused]] D d, V16 a, V16 b) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_SSSE3
  if constexpr (hn::MaxLanes(D()) == 64) {
#if HWY_TARGET <= HWY_AVX3
    return hn::Vec<D>{_mm512_packus_epi16(a.raw, b.raw)};
#endif
  } else if constexpr (hn::MaxLanes(D()) == 32) {
#if HWY_TARGET <= HWY_AVX2
    return hn::Vec<D>{_mm256_packus_epi16(a.raw, b.raw)};
#endif
  } else {
    return hn::Vec<D>{_mm_packus_epi16(a.raw, b.raw)};
  }
#else
  const hn::DFromV<V16> d16;
  const auto zero = hn::Zero(d16);
  const auto top = hn::Set(d16, 255);
  a = hn::Min(hn::Max(a, zero), top);
  b = hn::Min(hn::Max(b, zero), top);
  return hn::ConcatEven(d, hn::BitCast(d, b), hn::BitCast(d, a));
#endif
}

// Sums of products of 16-bit pairs. Some targets need a second accumulator for that; the total is the sum of both.
template <class D32>
struct Sums {
  using V32 = hn::Vec<D32>;
  V32 high, high_rest, low, low_rest;

  HWY_INLINE void clear() { high = high_rest = low = low_rest = hn::Zero(D32()); }
  template <class V16>
  HWY_INLINE void add(V16 values, V16 k_high, V16 k_low) {
    high = hn::ReorderWidenMulAccumulate(D32(), values, k_high, high, high_rest);
    low = hn::ReorderWidenMulAccumulate(D32(), values, k_low, low, low_rest);
  }
  HWY_INLINE V32 result() const {
    const V32 sum = hn::Add(hn::ShiftLeft<15>(hn::RearrangeToOddPlusEven(high, high_rest)),
                            hn::RearrangeToOddPlusEven(low, low_rest));
    return hn::ShiftRight<22>(hn::Add(sum, hn::Set(D32(), 1 << 21)));
  }
};

// The heart of both passes: for every byte lane, sum over k of coefficient[k] * bytes[k * stride], in Pillow's
// rounding.
template <class D>
HWY_INLINE hn::Vec<D> weighted_sum(D d, const uint8_t* HWY_RESTRICT bytes, size_t stride,
                                   const uint32_t* HWY_RESTRICT pairs, int taps) {
  const hn::Repartition<int16_t, D> d16;
  const hn::Repartition<uint32_t, D> du32;
  const auto zero = hn::Zero(d);
  Sums<hn::Repartition<int32_t, D> > s0, s1, s2, s3;
  s0.clear();
  s1.clear();
  s2.clear();
  s3.clear();
  const auto add_pair = [&](hn::Vec<D> a, hn::Vec<D> b, int k) HWY_ATTR {
    const auto k_high = hn::BitCast(d16, hn::Set(du32, pairs[k]));
    const auto k_low = hn::BitCast(d16, hn::Set(du32, pairs[k + 1]));
    const auto lower = hn::InterleaveLower(d, a, b);
    const auto upper = hn::InterleaveUpper(d, a, b);
    s0.add(hn::BitCast(d16, hn::InterleaveLower(d, lower, zero)), k_high, k_low);
    s1.add(hn::BitCast(d16, hn::InterleaveUpper(d, lower, zero)), k_high, k_low);
    s2.add(hn::BitCast(d16, hn::InterleaveLower(d, upper, zero)), k_high, k_low);
    s3.add(hn::BitCast(d16, hn::InterleaveUpper(d, upper, zero)), k_high, k_low);
  };
  int k = 0;
  // The first pair apart: its sums need no addition.
  if (taps >= 2) {
    add_pair(hn::LoadU(d, bytes), hn::LoadU(d, bytes + stride), 0);
    for (k = 2, bytes += 2 * stride; k + 1 < taps; k += 2, bytes += 2 * stride) {
      add_pair(hn::LoadU(d, bytes), hn::LoadU(d, bytes + stride), k);
    }
  }
  if (k < taps) add_pair(hn::LoadU(d, bytes), zero, k);
  return pack_bytes(d, hn::ReorderDemote2To(d16, s0.result(), s1.result()),
                    hn::ReorderDemote2To(d16, s2.result(), s3.result()));
}

// 16 vectors as 16 x 16 matrices in each 128-bit block: four perfect shuffles transpose them.
HWY_INLINE void transpose16(V8* HWY_RESTRICT v) {
  V8 w[16];
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 8; ++i) {
      w[2 * i] = hn::InterleaveLower(d8, v[i], v[i + 8]);
      w[2 * i + 1] = hn::InterleaveUpper(d8, v[i], v[i + 8]);
    }
    for (int i = 0; i < 8; ++i) {
      v[2 * i] = hn::InterleaveLower(d8, w[i], w[i + 8]);
      v[2 * i + 1] = hn::InterleaveUpper(d8, w[i], w[i + 8]);
    }
  }
}

// 16 bytes of row r in the first block and, where vectors have two, of row r + 16 in the second.
template <class D>
HWY_INLINE hn::Vec<D> load_blocks(D d, const uint8_t* first, const uint8_t* second) {
  if constexpr (hn::MaxLanes(D()) == 32) {
    const hn::Half<D> half;
    return hn::Combine(d, hn::LoadU(half, second), hn::LoadU(half, first));
  } else {
    (void)second;
    return hn::LoadU(d, first);
  }
}

template <class D>
HWY_INLINE void store_block(D d, hn::Vec<D> v, int block, uint8_t* to) {
  if constexpr (hn::MaxLanes(D()) == 32) {
    const hn::Half<D> half;
    if (block == 0) {
      hn::StoreU(hn::LowerHalf(half, v), half, to);
    } else {
      hn::StoreU(hn::UpperHalf(half, v), half, to);
    }
  } else {
    (void)block;
    hn::StoreU(v, d, to);
  }
}

// Columns [begin, end) of bytes of `lanes` rows (pointers repeat the last row where there are fewer) to one vector
// each.
void columns_of_rows(const uint8_t* const* rows, size_t begin, size_t end, size_t row_bytes, uint8_t* columns,
                     size_t column_stride) {
  uint8_t tail[lanes][16];
  for (size_t x = begin; x < end; x += 16) {
    V8 v[16];
    if (x + 16 <= row_bytes) {
      for (size_t r = 0; r < 16; ++r) v[r] = load_blocks(d8, rows[r] + x, rows[(r + 16) % lanes] + x);
    } else {
      for (size_t r = 0; r < lanes; ++r) {
        std::memset(tail[r], 0, 16);
        std::memcpy(tail[r], rows[r] + x, row_bytes - x);
      }
      for (size_t r = 0; r < 16; ++r) v[r] = load_blocks(d8, tail[r], tail[(r + 16) % lanes]);
    }
    transpose16(v);
    for (int i = 0; i < 16; ++i) {
      hn::Store(v[i], d8, columns);
      columns += column_stride;
    }
  }
}

// Outputs that share one stretch of transposed columns: as many as keep the stretch within the first-level cache.
constexpr int column_budget = 192;

// The last output (exclusive) of the group that begins at `from`, in order of output position; groups are whole
// sixteens. [begin, end) receives the source pixels needed.
int group_end(const Taps& taps, bool mirror, int from, int& begin, int& end) {
  const int count = taps.count();
  begin = INT32_MAX;
  end = 0;
  int to = from;
  while (to < count) {
    const int next = std::min(to + 16, count);
    int b = begin;
    int e = end;
    for (int i = to; i < next; ++i) {
      const auto at = static_cast<size_t>(mirror ? count - 1 - i : i);
      b = std::min(b, taps.start[at]);
      e = std::max(e, taps.start[at] + taps.size[at]);
    }
    if (to > from && e - b > column_budget) break;
    begin = b;
    end = e;
    to = next;
  }
  return to;
}

// Outputs [from, to) of a block of up to `MaxLanes(D)` rows, from source pixels [begin, end).
template <class D>
void resample_block(D d, const PixelView& source, int row0, int rows, int source_x, const Taps& taps, bool mirror,
                    int from, int to, int begin, int end, const ColumnScratch& scratch, const RowsOut& out) {
  constexpr size_t wide = hn::MaxLanes(D());
  const int count = taps.count();
  const bool planar = out.plane_stride != 0;
  for (size_t half = 0; half < wide; half += lanes) {
    const uint8_t* row[lanes];
    for (size_t r = 0; r < lanes; ++r) row[r] = source.row(std::min(row0 + static_cast<int>(half + r), rows - 1));
    columns_of_rows(row, static_cast<size_t>(begin - source_x) * 3, static_cast<size_t>(end - source_x) * 3,
                    static_cast<size_t>(source.width) * 3, scratch.source + half, wide);
  }
  const auto valid = std::min(wide, static_cast<size_t>(rows - row0));
  for (int x0 = from; x0 < to; x0 += 16) {
    // 48 result columns in the order of the way back: x then colour for interleaved, colour then x for planes.
    const size_t x_step = planar ? 1 : 3;
    const size_t c_step = planar ? 16 : 1;
    const int n = std::min(16, count - x0);
    for (int x = 0; x < n; ++x) {
      const int i = mirror ? count - 1 - (x0 + x) : x0 + x;
      const auto at = static_cast<size_t>(i);
      const uint8_t* column = scratch.source + static_cast<size_t>(taps.start[at] - begin) * 3 * wide;
      const uint32_t* pairs = taps.pairs(i);
      for (size_t c = 0; c < 3; ++c) {
        const auto sum = weighted_sum(d, column + c * wide, 3 * wide, pairs, taps.size[at]);
        hn::Store(sum, d, scratch.result + (static_cast<size_t>(x) * x_step + c * c_step) * wide);
      }
    }
    for (size_t half = 0; half < valid; half += lanes) {
      const size_t here = std::min(lanes, valid - half);
      for (size_t part = 0; part < 3; ++part) {
        V8 v[16];
        for (size_t i = 0; i < 16; ++i) v[i] = hn::Load(d8, scratch.result + (part * 16 + i) * wide + half);
        transpose16(v);
        uint8_t* to_row =
            out.data + (static_cast<size_t>(row0) + half) * out.row_stride +
            (planar ? part * out.plane_stride + static_cast<size_t>(x0) : static_cast<size_t>(x0) * 3 + part * 16);
        for (size_t r = 0; r < here; ++r) {
          store_block(d8, v[r % 16], static_cast<int>(r / 16), to_row + r * out.row_stride);
        }
      }
    }
  }
}

void ResampleRows(const PixelView& source, int rows, int source_x, const Taps& taps, bool mirror,
                  const ColumnScratch& scratch, const RowsOut& out) {
  const DWide wide;
  int begin = 0;
  int end = 0;
  for (int from = 0; from < taps.count();) {
    const int to = group_end(taps, mirror, from, begin, end);
    for (int row0 = 0; row0 < rows;) {
      if (static_cast<size_t>(rows - row0) > lanes) {
        resample_block(wide, source, row0, rows, source_x, taps, mirror, from, to, begin, end, scratch, out);
        row0 += static_cast<int>(hn::MaxLanes(wide));
      } else {
        resample_block(d8, source, row0, rows, source_x, taps, mirror, from, to, begin, end, scratch, out);
        row0 += static_cast<int>(lanes);
      }
    }
    from = to;
  }
}

template <class D>
HWY_INLINE size_t resample_stretch(D d, const uint8_t* first_row, size_t row_stride, const uint32_t* pairs, int taps,
                                   size_t i, size_t bytes, uint8_t* out) {
  for (; i + hn::MaxLanes(D()) <= bytes; i += hn::MaxLanes(D())) {
    hn::StoreU(weighted_sum(d, first_row + i, row_stride, pairs, taps), d, out + i);
  }
  return i;
}

void ResampleColumn(const uint8_t* first_row, size_t row_stride, const int32_t* coefficients, const uint32_t* pairs,
                    int taps, size_t bytes, uint8_t* out) {
  if (bytes < lanes) {
    // Rare: images narrower than a vector.
    for (size_t i = 0; i < bytes; ++i) out[i] = resample_value(first_row + i, row_stride, coefficients, taps);
    return;
  }
  size_t i = resample_stretch(DWide(), first_row, row_stride, pairs, taps, 0, bytes, out);
  i = resample_stretch(d8, first_row, row_stride, pairs, taps, i, bytes, out);
  if (i < bytes) {
    // The rest overlaps the vector before; equal bytes are written twice.
    resample_stretch(d8, first_row, row_stride, pairs, taps, bytes - lanes, bytes, out);
  }
}

void DeinterleaveRow(const uint8_t* rgb, int pixels, bool mirror, uint8_t* r, uint8_t* g, uint8_t* b) {
  const hn::CappedTag<uint8_t, 16> d;
  using V = hn::Vec<decltype(d)>;
  alignas(16) static constexpr uint8_t reversed[16] = {15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0};
  const V order = hn::Load(d, reversed);
  int x = 0;
  for (; x + 16 <= pixels; x += 16) {
    V vr, vg, vb;
    hn::LoadInterleaved3(d, rgb + static_cast<size_t>(x) * 3, vr, vg, vb);
    int to = x;
    if (mirror) {
      vr = hn::TableLookupBytes(vr, order);
      vg = hn::TableLookupBytes(vg, order);
      vb = hn::TableLookupBytes(vb, order);
      to = pixels - 16 - x;
    }
    hn::StoreU(vr, d, r + to);
    hn::StoreU(vg, d, g + to);
    hn::StoreU(vb, d, b + to);
  }
  for (; x < pixels; ++x) {
    const int to = mirror ? pixels - 1 - x : x;
    r[to] = rgb[static_cast<size_t>(x) * 3];
    g[to] = rgb[static_cast<size_t>(x) * 3 + 1];
    b[to] = rgb[static_cast<size_t>(x) * 3 + 2];
  }
}

// Scratch for the widest stretch: the budget, or what a single group of sixteen needs.
size_t ColumnScratchBytes(const Taps& taps) {
  int widest = 0;
  for (const bool mirror : {false, true}) {
    int begin = 0;
    int end = 0;
    for (int from = 0; from < taps.count();) {
      from = group_end(taps, mirror, from, begin, end);
      widest = std::max(widest, end - begin);
    }
  }
  return (static_cast<size_t>(widest) * 3 + 16) * hn::MaxLanes(DWide());
}

#endif  // HWY_TARGET

const char* TargetName() {
  return hwy::TargetName(HWY_TARGET);
}

}  // namespace HWY_NAMESPACE
}  // namespace penstock
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace penstock {

HWY_EXPORT(ResampleRows);
HWY_EXPORT(ResampleColumn);
HWY_EXPORT(DeinterleaveRow);
HWY_EXPORT(TargetName);
HWY_EXPORT(ColumnScratchBytes);

size_t column_scratch_bytes(const Taps& taps) {
  return HWY_DYNAMIC_DISPATCH(ColumnScratchBytes)(taps);
}

void resample_rows(const PixelView& source, int rows, int source_x, const Taps& taps, bool mirror,
                   const ColumnScratch& scratch, const RowsOut& out) {
  HWY_DYNAMIC_DISPATCH(ResampleRows)(source, rows, source_x, taps, mirror, scratch, out);
}

void resample_column(const uint8_t* first_row, size_t row_stride, const int32_t* coefficients, const uint32_t* pairs,
                     int taps, size_t bytes, uint8_t* out) {
  HWY_DYNAMIC_DISPATCH(ResampleColumn)(first_row, row_stride, coefficients, pairs, taps, bytes, out);
}

void deinterleave_row(const uint8_t* rgb, int pixels, bool mirror, uint8_t* r, uint8_t* g, uint8_t* b) {
  HWY_DYNAMIC_DISPATCH(DeinterleaveRow)(rgb, pixels, mirror, r, g, b);
}

const char* resample_target() {
  return HWY_DYNAMIC_DISPATCH(TargetName)();
}

}  // namespace penstock
#endif
