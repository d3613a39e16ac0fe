#include "runtime/pixels/resample_kernels.h"

#include <algorithm>
#include <cstring>

#include "runtime/pixels/resample_math.h"

// AVX-512 CPUs since Ice Lake and Zen 4: an instruction that adds the products of four bytes and four bytes.
#define HWY_WANT_AVX3_DL

// Vectors of a fixed size are needed (transposes within 128-bit blocks); the size-agnostic targets would run, on such
// machines, the code for their fixed-size siblings.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_RVV)

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/pixels/resample_kernels.cpp"
#include <hwy/foreach_target.h>  // compiles the rest of this file once per target
#include <hwy/highway.h>

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3_DL
HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512vnni")  // which Highway 1.0.3 forgets
#else
HWY_BEFORE_NAMESPACE();
#endif
namespace penstock {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_SCALAR

// CPUs older than any vector target of this build (x86-64 without SSSE3): the plain loops.
void SplitQuads(Taps& taps) {
  taps.quad_stride = 0;
  taps.quad_words.clear();
}

void PlanBand(const Taps& /*taps*/, bool mirror, BandPlan& plan) {
  plan.mirror = mirror;
  plan.scratch_bytes = 64;
}

void ResampleBand(const PlanarBand& band, const Taps& taps, const BandPlan& plan, uint8_t* /*scratch*/,
                  const QuadRows& out) {
  const int count = taps.count();
  for (size_t plane = 0; plane < 3; ++plane) {
    for (size_t row = 0; row < kResampleBandRows; ++row) {
      const uint8_t* const from = band.data + plane * band.plane_stride + row * band.row_stride;
      uint8_t* const to = out.data + row / 4 * out.group_stride + plane * out.plane_stride + row % 4;
      for (int x = 0; x < count; ++x) {
        const int i = plan.mirror ? count - 1 - x : x;
        const auto at = static_cast<size_t>(i);
        to[4 * static_cast<size_t>(x)] =
            resample_value(from + (taps.start[at] - band.first_column), 1, taps.coefficients(i), taps.size[at]);
      }
    }
  }
}

void ResampleDown(const uint8_t* quads, size_t group_stride, const Taps& taps, int i, size_t width, uint8_t* out) {
  const auto at = static_cast<size_t>(i);
  const int32_t* const coefficients = taps.coefficients(i);
  for (size_t x = 0; x < width; ++x) {
    int32_t sum = kResampleHalf;
    for (int k = 0; k < taps.size[at]; ++k) {
      const auto row = static_cast<size_t>(taps.start[at] % 4 + k);
      sum += quads[row / 4 * group_stride + 4 * x + row % 4] * coefficients[k];
    }
    out[x] = clip_q22(sum);
  }
}

void DeinterleaveRow(const uint8_t* rgb, int pixels, bool mirror, uint8_t* r, uint8_t* g, uint8_t* b) {
  for (int x = 0; x < pixels; ++x) {
    const int to = mirror ? pixels - 1 - x : x;
    r[to] = rgb[static_cast<size_t>(x) * 3];
    g[to] = rgb[static_cast<size_t>(x) * 3 + 1];
    b[to] = rgb[static_cast<size_t>(x) * 3 + 2];
  }
}

void InterleaveRow(const uint8_t* r, const uint8_t* g, const uint8_t* b, int pixels, uint8_t* rgb) {
  for (int x = 0; x < pixels; ++x) {
    *rgb++ = r[x];
    *rgb++ = g[x];
    *rgb++ = b[x];
  }
}

#else

// A vector holds one quad of `lanes` rows, or of as many columns.
using D32 = hn::CappedTag<int32_t, 16>;
using D16 = hn::Repartition<int16_t, D32>;
using D8 = hn::Repartition<uint8_t, D32>;
using V32 = hn::Vec<D32>;
using V16 = hn::Vec<D16>;
using V8 = hn::Vec<D8>;
constexpr D32 d32;
constexpr D16 d16;
constexpr D8 d8;
constexpr size_t kLanes = hn::MaxLanes(D32());
constexpr size_t kVectorBytes = 4 * kLanes;
constexpr size_t kBlocks = kLanes / 4;  // of 128 bits

// Two vectors of int16 to one of uint8, saturated, within each 128-bit block.
HWY_INLINE V8 pack_bytes(V16 a, V16 b) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  return V8{_mm512_packus_epi16(a.raw, b.raw)};
#elif HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
  return V8{_mm256_packus_epi16(a.raw, b.raw)};
#elif HWY_ARCH_X86 && HWY_TARGET <= HWY_SSSE3
  return V8{_mm_packus_epi16(a.raw, b.raw)};
#else
  const auto zero = hn::Zero(d16);
  const auto top = hn::Set(d16, 255);
  a = hn::Min(hn::Max(a, zero), top);
  b = hn::Min(hn::Max(b, zero), top);
  return hn::ConcatEven(d8, hn::BitCast(d8, b), hn::BitCast(d8, a));
#endif
}

// Four sums a lane to four bytes a lane.
HWY_INLINE V8 pack_sums(V32 a, V32 b, V32 c, V32 d) {
  return pack_bytes(hn::ReorderDemote2To(d16, a, b), hn::ReorderDemote2To(d16, c, d));
}

// Sums of coefficient times byte, a quad at a time, in Pillow's rounding. They may wrap on the way: the total fits.
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3_DL

// K = k2 * 2^16 + k1 * 2^8 + k0, each a signed byte.
constexpr size_t kWordsPerQuad = 3;

HWY_INLINE void set_tap(int32_t k, size_t place, uint32_t* words) {
  for (size_t i = 0; i < kWordsPerQuad; ++i) {
    const auto byte = static_cast<int8_t>(k);
    words[i] |= uint32_t{static_cast<uint8_t>(byte)} << (8 * place);
    k = (k - byte) >> 8;
  }
}

// Weighted sums over `vectors` vectors of quads, `apart` bytes from each other, with the same coefficients.
template <int fixed, size_t vectors>
HWY_INLINE void weighted_sums(const uint8_t* quads, size_t apart, size_t step, const uint32_t* words, int any,
                              V32* HWY_RESTRICT sums) {
  const auto byte = [](V32 sum, V8 quad, uint32_t word) {
    return V32{_mm512_dpbusd_epi32(sum.raw, quad.raw, _mm512_set1_epi32(static_cast<int>(word)))};
  };
  if constexpr (fixed > 0) {
    // From the highest byte on: the lower ones' products come to what was made of it, shifted.
    const auto add = [&](V32 sum, size_t v, size_t part) {
      HWY_UNROLL(4)
      for (size_t n = 0; n < fixed; ++n) {
        sum = byte(sum, hn::Load(d8, quads + v * apart + n * step), words[n * kWordsPerQuad + part]);
      }
      return sum;
    };
    HWY_UNROLL(4)
    for (size_t v = 0; v < vectors; ++v) {
      V32 sum = add(hn::Set(d32, kResampleHalf >> 16), v, 2);
      sum = add(hn::ShiftLeft<8>(sum), v, 1);
      sum = add(hn::ShiftLeft<8>(sum), v, 0);
      sums[v] = hn::ShiftRight<kResamplePrecisionBits>(sum);
    }
  } else {
    V32 parts[vectors][kWordsPerQuad];
    HWY_UNROLL(4)
    for (size_t v = 0; v < vectors; ++v) {
      parts[v][0] = hn::Set(d32, kResampleHalf);
      parts[v][1] = parts[v][2] = hn::Zero(d32);
    }
    for (; any > 0; --any, quads += step, words += kWordsPerQuad) {
      HWY_UNROLL(4)
      for (size_t v = 0; v < vectors; ++v) {
        const V8 quad = hn::Load(d8, quads + v * apart);
        HWY_UNROLL(4)
        for (size_t part = 0; part < kWordsPerQuad; ++part) parts[v][part] = byte(parts[v][part], quad, words[part]);
      }
    }
    HWY_UNROLL(4)
    for (size_t v = 0; v < vectors; ++v) {
      const V32 total = hn::Add(hn::Add(parts[v][0], hn::ShiftLeft<8>(parts[v][1])), hn::ShiftLeft<16>(parts[v][2]));
      sums[v] = hn::ShiftRight<kResamplePrecisionBits>(total);
    }
  }
}

#else

// K = high * 2^15 + low with 0 <= low < 2^15: of the quad's even and odd bytes the highs, then the lows.
constexpr size_t kWordsPerQuad = 4;

HWY_INLINE void set_tap(int32_t k, size_t place, uint32_t* words) {
  words[place % 2] |= (static_cast<uint32_t>(k >> 15) & 0xFFFF) << (place / 2 * 16);
  words[2 + place % 2] |= (static_cast<uint32_t>(k) & 0x7FFF) << (place / 2 * 16);
}

HWY_INLINE V16 coefficients(uint32_t word) {
  return hn::BitCast(d16, hn::Set(d32, static_cast<int32_t>(word)));
}

// Weighted sums over `vectors` vectors of quads, `apart` bytes from each other, with the same coefficients. Some
// targets need a second accumulator for products of pairs; the total is the sum of both.
template <int fixed, size_t vectors>
HWY_INLINE void weighted_sums(const uint8_t* quads, size_t apart, size_t step, const uint32_t* words, int any,
                              V32* HWY_RESTRICT sums) {
  const int count = fixed > 0 ? fixed : any;
  struct Parts {
    V32 high, high_rest, low, low_rest;
  } parts[vectors];
  HWY_UNROLL(4)
  for (size_t v = 0; v < vectors; ++v) {
    Parts& p = parts[v];
    p.high = p.high_rest = p.low_rest = hn::Zero(d32);
    p.low = hn::Set(d32, kResampleHalf);
  }
  for (int n = 0; n < count; ++n, quads += step, words += kWordsPerQuad) {
    HWY_UNROLL(4)
    for (size_t v = 0; v < vectors; ++v) {
      const V16 quad = hn::BitCast(d16, hn::Load(d8, quads + v * apart));
      const V16 even = hn::And(quad, hn::Set(d16, 0xFF));
      const hn::RebindToUnsigned<D16> du16;
      const V16 odd = hn::BitCast(d16, hn::ShiftRight<8>(hn::BitCast(du16, quad)));
      Parts& p = parts[v];
      p.high = hn::ReorderWidenMulAccumulate(d32, even, coefficients(words[0]), p.high, p.high_rest);
      p.high = hn::ReorderWidenMulAccumulate(d32, odd, coefficients(words[1]), p.high, p.high_rest);
      p.low = hn::ReorderWidenMulAccumulate(d32, even, coefficients(words[2]), p.low, p.low_rest);
      p.low = hn::ReorderWidenMulAccumulate(d32, odd, coefficients(words[3]), p.low, p.low_rest);
    }
  }
  HWY_UNROLL(4)
  for (size_t v = 0; v < vectors; ++v) {
    const Parts& p = parts[v];
    const V32 total = hn::Add(hn::ShiftLeft<15>(hn::RearrangeToOddPlusEven(p.high, p.high_rest)),
                              hn::RearrangeToOddPlusEven(p.low, p.low_rest));
    sums[v] = hn::ShiftRight<kResamplePrecisionBits>(total);
  }
}

#endif

void SplitQuads(Taps& taps) {
  taps.quad_stride = (static_cast<size_t>(taps.stride) + 6) / 4 * kWordsPerQuad;
  taps.quad_words.assign(static_cast<size_t>(taps.count()) * taps.quad_stride, 0);
  for (int i = 0; i < taps.count(); ++i) {
    const auto at = static_cast<size_t>(i);
    uint32_t* const words = taps.quad_words.data() + at * taps.quad_stride;
    for (int k = 0; k < taps.size[at]; ++k) {
      const auto place = static_cast<size_t>(taps.start[at] % 4 + k);
      set_tap(taps.coefficients(i)[k], place % 4, words + place / 4 * kWordsPerQuad);
    }
  }
}

// 16 bytes of each of `lanes` rows: rows 4b to 4b + 3 in the blocks b of the four vectors.
template <class D>
HWY_INLINE hn::Vec<D> load_blocks(D d, const uint8_t* from, size_t stride) {
  if constexpr (hn::MaxLanes(D()) == 16) {
    return hn::LoadU(d, from);
  } else {
    const hn::Half<D> half;
    return hn::Combine(d, load_blocks(half, from + hn::MaxLanes(half) / 16 * stride, stride),
                       load_blocks(half, from, stride));
  }
}

template <class D>
HWY_INLINE void store_blocks(D d, hn::Vec<D> v, uint8_t* to, size_t stride) {
  if constexpr (hn::MaxLanes(D()) == 16) {
    hn::StoreU(v, d, to);
  } else {
    const hn::Half<D> half;
    store_blocks(half, hn::LowerHalf(half, v), to, stride);
    store_blocks(half, hn::UpperHalf(half, v), to + hn::MaxLanes(half) / 16 * stride, stride);
  }
}

// Four vectors as 4 x 4 matrices of quads in each block.
HWY_INLINE void transpose_quads(V8* HWY_RESTRICT v) {
  const hn::Repartition<uint32_t, D8> du32;
  const hn::Repartition<uint64_t, D8> du64;
  const auto a = hn::BitCast(du64, hn::InterleaveLower(du32, hn::BitCast(du32, v[0]), hn::BitCast(du32, v[1])));
  const auto b = hn::BitCast(du64, hn::InterleaveLower(du32, hn::BitCast(du32, v[2]), hn::BitCast(du32, v[3])));
  const auto c = hn::BitCast(du64, hn::InterleaveUpper(du32, hn::BitCast(du32, v[0]), hn::BitCast(du32, v[1])));
  const auto d = hn::BitCast(du64, hn::InterleaveUpper(du32, hn::BitCast(du32, v[2]), hn::BitCast(du32, v[3])));
  v[0] = hn::BitCast(d8, hn::InterleaveLower(du64, a, b));
  v[1] = hn::BitCast(d8, hn::InterleaveUpper(du64, a, b));
  v[2] = hn::BitCast(d8, hn::InterleaveLower(du64, c, d));
  v[3] = hn::BitCast(d8, hn::InterleaveUpper(du64, c, d));
}

// Outputs that share one run of transposed quads: as many as keep the run within the first-level cache.
constexpr int kColumnRunBudget = 96;

// The one that begins at output `from`; whole fours but for the last.
BandPlan::ColumnRun column_run_from(const Taps& taps, bool mirror, int from) {
  const int count = taps.count();
  BandPlan::ColumnRun column_run{from, INT32_MAX, 0};
  while (column_run.end_output < count) {
    BandPlan::ColumnRun longer = column_run;
    longer.end_output = std::min(column_run.end_output + 4, count);
    for (int x = column_run.end_output; x < longer.end_output; ++x) {
      const int i = mirror ? count - 1 - x : x;
      longer.first_quad = std::min(longer.first_quad, taps.first_quad(i));
      longer.end_quad = std::max(longer.end_quad, taps.first_quad(i) + taps.quad_count(i));
    }
    if (column_run.end_output > from && longer.end_quad - longer.first_quad > kColumnRunBudget) break;
    column_run = longer;
  }
  return column_run;
}

void PlanBand(const Taps& taps, bool mirror, BandPlan& plan) {
  const int count = taps.count();
  plan.mirror = mirror;
  plan.column_runs.clear();
  plan.fours.clear();
  int longest = 0;
  for (int from = 0; from < count; from = plan.column_runs.back().end_output) {
    const BandPlan::ColumnRun column_run = column_run_from(taps, mirror, from);
    plan.column_runs.push_back(column_run);
    int end = 0;
    for (int x0 = from; x0 < column_run.end_output; x0 += 4) {
      BandPlan::Four& four = plan.fours.emplace_back();
      for (int x = 0; x < 4; ++x) {
        const int at = std::min(x0 + x, count - 1);
        const int i = mirror ? count - 1 - at : at;
        four.first_quad[static_cast<size_t>(x)] = static_cast<uint32_t>(taps.first_quad(i) - column_run.first_quad);
        four.words[static_cast<size_t>(x)] = static_cast<uint32_t>(taps.quads(i) - taps.quad_words.data());
        four.quads = std::max(four.quads, taps.quad_count(i));
      }
      const uint32_t last = *std::max_element(four.first_quad.begin(), four.first_quad.end());
      end = std::max(end, static_cast<int>(last) + four.quads);
    }
    longest = std::max({longest, column_run.end_quad - column_run.first_quad + 3, end});
  }
  plan.scratch_bytes = static_cast<size_t>(longest) * 3 * kVectorBytes;
}

// The run's quads of all three planes, of `lanes` rows: quad, plane, row.
void transpose_band(const PlanarBand& band, size_t row, const BandPlan::ColumnRun& column_run, uint8_t* quads) {
  const uint8_t* from = band.data + row * band.row_stride + 4 * column_run.first_quad - band.first_column;
  for (int quad = column_run.first_quad; quad < column_run.end_quad;
       quad += 4, from += 16, quads += 12 * kVectorBytes) {
    for (size_t plane = 0; plane < 3; ++plane) {
      V8 v[4];
      for (size_t r = 0; r < 4; ++r) {
        v[r] = load_blocks(d8, from + plane * band.plane_stride + r * band.row_stride, 4 * band.row_stride);
      }
      transpose_quads(v);
      for (size_t i = 0; i < 4; ++i) hn::Store(v[i], d8, quads + (3 * i + plane) * kVectorBytes);
    }
  }
}

template <int fixed>
HWY_INLINE void resample_four(const BandPlan::Four& four, const uint32_t* words, const uint8_t* scratch,
                              const QuadRows& out, uint8_t* to) {
  constexpr size_t step = 3 * kVectorBytes;
  V32 sums[4][3];
  HWY_UNROLL(4)
  for (size_t x = 0; x < 4; ++x) {
    weighted_sums<fixed, 3>(scratch + four.first_quad[x] * step, kVectorBytes, step, words + four.words[x], four.quads,
                            sums[x]);
  }
  HWY_UNROLL(3)
  for (size_t plane = 0; plane < 3; ++plane) {
    store_blocks(d8, pack_sums(sums[0][plane], sums[1][plane], sums[2][plane], sums[3][plane]),
                 to + plane * out.plane_stride, out.group_stride);
  }
}

void ResampleBand(const PlanarBand& band, const Taps& taps, const BandPlan& plan, uint8_t* scratch,
                  const QuadRows& out) {
  const uint32_t* const words = taps.quad_words.data();
  const BandPlan::Four* first = plan.fours.data();
  size_t x = 0;
  for (const BandPlan::ColumnRun& column_run : plan.column_runs) {
    const size_t fours = (static_cast<size_t>(column_run.end_output) - x + 3) / 4;
    for (size_t row = 0; row < kResampleBandRows; row += kLanes) {
      transpose_band(band, row, column_run, scratch);
      uint8_t* to = out.data + row / 4 * out.group_stride + 4 * x;
      for (size_t n = 0; n < fours; ++n, to += 16) {
        switch (first[n].quads) {
          case 1: resample_four<1>(first[n], words, scratch, out, to); break;
          case 2: resample_four<2>(first[n], words, scratch, out, to); break;
          default: resample_four<0>(first[n], words, scratch, out, to);
        }
      }
    }
    first += fours;
    x += 4 * fours;
  }
}

template <int fixed>
HWY_INLINE void resample_down(const uint8_t* quads, size_t group_stride, const uint32_t* words, int count, size_t width,
                              uint8_t* out) {
  // Packing leaves the columns of each of four sums in every block.
  alignas(64) int32_t order[kLanes];
  for (size_t k = 0; k < kLanes; ++k) order[k] = static_cast<int32_t>(k % kBlocks * 4 + k / kBlocks);
  const auto in_order = hn::SetTableIndices(d32, order);
  for (size_t x = 0; x < width; x += kVectorBytes) {
    const uint8_t* const from = quads + 4 * x;
    V32 sums[4];
    weighted_sums<fixed, 4>(from, kVectorBytes, group_stride, words, count, sums);
    const V8 packed = pack_sums(sums[0], sums[1], sums[2], sums[3]);
    const V8 bytes = hn::BitCast(d8, hn::TableLookupLanes(hn::BitCast(d32, packed), in_order));
    if (x + kVectorBytes <= width) {
      hn::StoreU(bytes, d8, out + x);
    } else {
      alignas(64) uint8_t rest[kVectorBytes];
      hn::Store(bytes, d8, rest);
      std::memcpy(out + x, rest, width - x);
    }
  }
}

void ResampleDown(const uint8_t* quads, size_t group_stride, const Taps& taps, int i, size_t width, uint8_t* out) {
  const int count = taps.quad_count(i);
  switch (count) {
    case 1: return resample_down<1>(quads, group_stride, taps.quads(i), count, width, out);
    case 2: return resample_down<2>(quads, group_stride, taps.quads(i), count, width, out);
    default: return resample_down<0>(quads, group_stride, taps.quads(i), count, width, out);
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

void InterleaveRow(const uint8_t* r, const uint8_t* g, const uint8_t* b, int pixels, uint8_t* rgb) {
  const hn::CappedTag<uint8_t, 16> d;
  int x = 0;
  for (; x + 16 <= pixels; x += 16) {
    hn::StoreInterleaved3(hn::LoadU(d, r + x), hn::LoadU(d, g + x), hn::LoadU(d, b + x), d,
                          rgb + static_cast<size_t>(x) * 3);
  }
  for (rgb += static_cast<size_t>(x) * 3; x < pixels; ++x) {
    *rgb++ = r[x];
    *rgb++ = g[x];
    *rgb++ = b[x];
  }
}

#endif  // HWY_TARGET

const char* TargetName() {
  return hwy::TargetName(HWY_TARGET);
}

}  // namespace HWY_NAMESPACE
}  // namespace penstock
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3_DL
HWY_POP_ATTRIBUTES
#else
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace penstock {

HWY_EXPORT(SplitQuads);
HWY_EXPORT(ResampleBand);
HWY_EXPORT(ResampleDown);
HWY_EXPORT(DeinterleaveRow);
HWY_EXPORT(InterleaveRow);
HWY_EXPORT(TargetName);
HWY_EXPORT(PlanBand);

void split_quads(Taps& taps) {
  HWY_DYNAMIC_DISPATCH(SplitQuads)(taps);
}

void plan_band(const Taps& taps, bool mirror, BandPlan& plan) {
  HWY_DYNAMIC_DISPATCH(PlanBand)(taps, mirror, plan);
}

void resample_band(const PlanarBand& band, const Taps& taps, const BandPlan& plan, uint8_t* scratch,
                   const QuadRows& out) {
  HWY_DYNAMIC_DISPATCH(ResampleBand)(band, taps, plan, scratch, out);
}

void resample_down(const uint8_t* quads, size_t group_stride, const Taps& taps, int i, size_t width, uint8_t* out) {
  HWY_DYNAMIC_DISPATCH(ResampleDown)(quads, group_stride, taps, i, width, out);
}

void deinterleave_row(const uint8_t* rgb, int pixels, bool mirror, uint8_t* r, uint8_t* g, uint8_t* b) {
  HWY_DYNAMIC_DISPATCH(DeinterleaveRow)(rgb, pixels, mirror, r, g, b);
}

void interleave_row(const uint8_t* r, const uint8_t* g, const uint8_t* b, int pixels, uint8_t* rgb) {
  HWY_DYNAMIC_DISPATCH(InterleaveRow)(r, g, b, pixels, rgb);
}

const char* resample_target() {
  return HWY_DYNAMIC_DISPATCH(TargetName)();
}

}  // namespace penstock
#endif
