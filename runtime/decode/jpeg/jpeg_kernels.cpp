#include "runtime/decode/jpeg/jpeg_kernels.h"

#include <cstring>

// The vector code is written for x86, whose packing and pairwise products libjpeg-turbo's arithmetic is made of; other
// CPUs and targets take the plain loops. (Our decoder serves x86 alone: see own_jpeg_decoder.h.)
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_RVV)

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/decode/jpeg/jpeg_kernels.cpp"
#include <hwy/foreach_target.h>  // compiles the rest of this file once per target
#include <hwy/highway.h>

#include "runtime/decode/jpeg/coefficient_tiles.h"

// A namespace of its own: the linker must not confuse these with other kernels' helpers of the same name.
HWY_BEFORE_NAMESPACE();
namespace penstock::jpeg_vectors {
namespace HWY_NAMESPACE {

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_SSSE3
namespace hn = hwy::HWY_NAMESPACE;

// A vector holds a row of 1, 2 or 4 blocks, one in each of its 128-bit parts. Interleaving, transposing and packing
// stay within these parts.
using D16 = hn::CappedTag<int16_t, 32>;
using D32 = hn::RepartitionToWide<D16>;
using D8 = hn::Repartition<uint8_t, D16>;
using V16 = hn::Vec<D16>;
using V32 = hn::Vec<D32>;
using V8 = hn::Vec<D8>;
constexpr D16 d16;
constexpr D32 d32;
constexpr D8 d8;
constexpr size_t kLanes = hn::MaxLanes(D16());

// Bytes of half as many as a vector holds: those that become one vector of 16-bit numbers.
using DHalf8 = hn::Rebind<uint8_t, D16>;
constexpr DHalf8 half8;

HWY_INLINE V16 load_wide(const uint8_t* from) {
  return hn::PromoteTo(d16, hn::LoadU(half8, from));
}

HWY_INLINE V8 pack_bytes(V16 a, V16 b) {
#if HWY_TARGET <= HWY_AVX3
  return V8{_mm512_packus_epi16(a.raw, b.raw)};
#elif HWY_TARGET <= HWY_AVX2
  return V8{_mm256_packus_epi16(a.raw, b.raw)};
#else
  return V8{_mm_packus_epi16(a.raw, b.raw)};
#endif
}

// A constant for the first and the second of each pair of 16-bit numbers.
HWY_INLINE V16 pair(int first, int second) {
  return hn::BitCast(d16, hn::Set(d32, static_cast<int32_t>((static_cast<uint32_t>(second) << 16) |
                                                            (static_cast<uint32_t>(first) & 0xFFFF))));
}

struct Halves {
  V32 lower, upper;
};
HWY_INLINE Halves operator+(Halves a, Halves b) {
  return {hn::Add(a.lower, b.lower), hn::Add(a.upper, b.upper)};
}
HWY_INLINE Halves operator-(Halves a, Halves b) {
  return {hn::Sub(a.lower, b.lower), hn::Sub(a.upper, b.upper)};
}

// Interleaved a and b, for sums of products.
struct Pairs {
  V16 lower, upper;
  HWY_INLINE Pairs(V16 a, V16 b) : lower(hn::InterleaveLower(d16, a, b)), upper(hn::InterleaveUpper(d16, a, b)) {}
  HWY_INLINE Halves times(V16 constants) const {
    V32 unused = hn::Zero(d32);
    return {hn::ReorderWidenMulAccumulate(d32, lower, constants, hn::Zero(d32), unused),
            hn::ReorderWidenMulAccumulate(d32, upper, constants, hn::Zero(d32), unused)};
  }
};

HWY_INLINE Halves shifted_13(V16 v, V32 rounding) {
  const V16 zero = hn::Zero(d16);
  return {hn::Add(hn::ShiftRight<3>(hn::BitCast(d32, hn::InterleaveLower(d16, zero, v))), rounding),
          hn::Add(hn::ShiftRight<3>(hn::BitCast(d32, hn::InterleaveUpper(d16, zero, v))), rounding)};
}

template <int down>
HWY_INLINE V16 descale(Halves h) {
  return hn::ReorderDemote2To(d16, hn::ShiftRight<down>(h.lower), hn::ShiftRight<down>(h.upper));
}

// idct_pass() of jpeg_math.h on every lane: v[k] is the k-th of the eight values.
template <int down>
HWY_INLINE void pass(V16* HWY_RESTRICT v) {
  const V32 rounding = hn::Set(d32, 1 << (down - 1));
  const Pairs p26(v[2], v[6]);
  const Halves t2 = p26.times(pair(4433, 4433 - 15137));
  const Halves t3 = p26.times(pair(4433 + 6270, 4433));
  const Halves t0 = shifted_13(hn::Add(v[0], v[4]), rounding);
  const Halves t1 = shifted_13(hn::Sub(v[0], v[4]), rounding);
  const Pairs sums(hn::Add(v[7], v[3]), hn::Add(v[5], v[1]));
  const Halves z3 = sums.times(pair(9633 - 16069, 9633));
  const Halves z4 = sums.times(pair(9633, 9633 - 3196));
  const Pairs p71(v[7], v[1]);
  const Pairs p53(v[5], v[3]);
  const Halves o0 = p71.times(pair(-7373, 12299 - 7373)) + z4;
  const Halves o1 = p53.times(pair(-20995, 25172 - 20995)) + z3;
  const Halves o2 = p53.times(pair(16819 - 20995, -20995)) + z4;
  const Halves o3 = p71.times(pair(2446 - 7373, -7373)) + z3;
  const Halves e0 = t0 + t3;
  const Halves e1 = t1 + t2;
  const Halves e2 = t1 - t2;
  const Halves e3 = t0 - t3;
  v[0] = descale<down>(e0 + o0);
  v[7] = descale<down>(e0 - o0);
  v[1] = descale<down>(e1 + o1);
  v[6] = descale<down>(e1 - o1);
  v[2] = descale<down>(e2 + o2);
  v[5] = descale<down>(e2 - o2);
  v[3] = descale<down>(e3 + o3);
  v[4] = descale<down>(e3 - o3);
}

// 8 x 8 numbers in each part: three perfect shuffles.
HWY_INLINE void transpose8(V16* HWY_RESTRICT v) {
  V16 w[8];
  for (int i = 0; i < 4; ++i) {
    w[2 * i] = hn::InterleaveLower(d16, v[i], v[i + 4]);
    w[2 * i + 1] = hn::InterleaveUpper(d16, v[i], v[i + 4]);
  }
  for (int i = 0; i < 4; ++i) {
    v[2 * i] = hn::InterleaveLower(d16, w[i], w[i + 4]);
    v[2 * i + 1] = hn::InterleaveUpper(d16, w[i], w[i + 4]);
  }
  for (int i = 0; i < 4; ++i) {
    w[2 * i] = hn::InterleaveLower(d16, v[i], v[i + 4]);
    w[2 * i + 1] = hn::InterleaveUpper(d16, v[i], v[i + 4]);
  }
  for (int i = 0; i < 8; ++i) v[i] = w[i];
}

// Two rows in each part (8 bytes each), of `even` rows r and r + 1, of `odd` rows r + 2 and r + 3.
HWY_INLINE void store_rows(V8 even, V8 odd, uint8_t* to, size_t stride) {
  const hn::Repartition<uint64_t, D16> d64;
  const hn::Half<D8> half;
  const V8 first = hn::BitCast(d8, hn::ConcatEven(d64, hn::BitCast(d64, odd), hn::BitCast(d64, even)));
  const V8 second = hn::BitCast(d8, hn::ConcatOdd(d64, hn::BitCast(d64, odd), hn::BitCast(d64, even)));
  hn::StoreU(hn::LowerHalf(half, first), half, to);
  hn::StoreU(hn::LowerHalf(half, second), half, to + stride);
  hn::StoreU(hn::UpperHalf(half, first), half, to + 2 * stride);
  hn::StoreU(hn::UpperHalf(half, second), half, to + 3 * stride);
}

void IdctTiles(const int16_t* tiles, size_t count, const uint16_t* quant, uint8_t* out, size_t out_stride) {
  V16 q[8];
  for (size_t r = 0; r < 8; ++r) q[r] = hn::LoadDup128(d16, reinterpret_cast<const int16_t*>(quant) + 8 * r);
  const hn::Repartition<uint32_t, D16> du32;
  for (size_t tile = 0; tile < count; ++tile, tiles += kTileCoefficients, out += 8 * kBlocksPerTile) {
    for (size_t part = 0; part < 32; part += kLanes) {
      V16 v[8];
      for (size_t r = 0; r < 8; ++r) v[r] = hn::Mul(hn::LoadU(d16, tiles + 32 * r + part), q[r]);
      // Where four times a value of the first row leaves 16 bits, it matters whether there is anything else in the
      // block: never in real pictures.
      if (!hn::AllTrue(d16, hn::Eq(v[0], hn::ShiftRight<2>(hn::ShiftLeft<2>(v[0]))))) [[unlikely]] {
        reference::idct_tiles(tiles, 1, quant, out, out_stride);
        break;
      }
      pass<11>(v);
      transpose8(v);
      pass<18>(v);
      const V16 centre = hn::Set(d16, 128);
      for (V16& column : v) column = hn::SaturatedAdd(column, centre);
      const V8 p0 = pack_bytes(v[0], v[4]);
      const V8 p1 = pack_bytes(v[1], v[5]);
      const V8 p2 = pack_bytes(v[2], v[6]);
      const V8 p3 = pack_bytes(v[3], v[7]);
      const V8 a0 = hn::InterleaveLower(d8, p0, p2);
      const V8 a1 = hn::InterleaveUpper(d8, p0, p2);
      const V8 b0 = hn::InterleaveLower(d8, p1, p3);
      const V8 b1 = hn::InterleaveUpper(d8, p1, p3);
      const auto c0 = hn::BitCast(du32, hn::InterleaveLower(d8, a0, b0));  // columns 0 to 3 of rows 0 to 3
      const auto c1 = hn::BitCast(du32, hn::InterleaveUpper(d8, a0, b0));  // of rows 4 to 7
      const auto e0 = hn::BitCast(du32, hn::InterleaveLower(d8, a1, b1));  // columns 4 to 7
      const auto e1 = hn::BitCast(du32, hn::InterleaveUpper(d8, a1, b1));
      uint8_t* const to = out + part;
      store_rows(hn::BitCast(d8, hn::InterleaveLower(du32, c0, e0)), hn::BitCast(d8, hn::InterleaveUpper(du32, c0, e0)),
                 to, out_stride);
      store_rows(hn::BitCast(d8, hn::InterleaveLower(du32, c1, e1)), hn::BitCast(d8, hn::InterleaveUpper(du32, c1, e1)),
                 to + 4 * out_stride, out_stride);
    }
  }
}

// The parts of a row of tiles: so many blocks as a vector holds, one after the other.
constexpr size_t kPartsPerTile = 32 / kLanes;
constexpr size_t kBlocksPerPart = kLanes / 8;

HWY_INLINE V16 load_row(const int16_t* tiles, size_t part, size_t row, const V16* HWY_RESTRICT quant) {
  const int16_t* const from = tiles + part / kPartsPerTile * kTileCoefficients + part % kPartsPerTile * kLanes;
  return hn::Mul(hn::LoadU(d16, from + 32 * row), quant[row]);
}

HWY_INLINE void load_quant(const uint16_t* quant, V16* HWY_RESTRICT q) {
  for (size_t r = 0; r < 8; ++r) q[r] = hn::LoadDup128(d16, reinterpret_cast<const int16_t*>(quant) + 8 * r);
}

// v * 2^(16 - right), and half of what is shifted out afterwards.
template <int right>
HWY_INLINE Halves shifted_up(V16 v, V32 rounding) {
  const V16 zero = hn::Zero(d16);
  return {hn::Add(hn::ShiftRight<right>(hn::BitCast(d32, hn::InterleaveLower(d16, zero, v))), rounding),
          hn::Add(hn::ShiftRight<right>(hn::BitCast(d32, hn::InterleaveUpper(d16, zero, v))), rounding)};
}

// idct_pass_to_4() of jpeg_math.h; v[4] is not looked at.
template <int down>
HWY_INLINE void pass_to_4(const V16* HWY_RESTRICT v, V16* HWY_RESTRICT out) {
  const Halves even = shifted_up<2>(v[0], hn::Set(d32, 1 << (down - 1)));
  const Halves turned = Pairs(v[2], v[6]).times(pair(15137, -6270));
  const Pairs p13(v[1], v[3]);
  const Pairs p57(v[5], v[7]);
  const Halves odd0 = p13.times(pair(20995, 7373)) + p57.times(pair(-4926, -4176));
  const Halves odd1 = p13.times(pair(8697, -17799)) + p57.times(pair(11893, -1730));
  const Halves e0 = even + turned;
  const Halves e1 = even - turned;
  out[0] = descale<down>(e0 + odd0);
  out[1] = descale<down>(e1 + odd1);
  out[2] = descale<down>(e1 - odd1);
  out[3] = descale<down>(e0 - odd0);
}

// Two parts at a time, so that a transposed vector is full.
void IdctTiles4x4(const int16_t* tiles, size_t count, const uint16_t* quant, uint8_t* out, size_t out_stride) {
  V16 q[8];
  load_quant(quant, q);
  const size_t parts = count * kPartsPerTile;
  const V16 centre = hn::Set(d16, 128);
  for (size_t part = 0; part < parts; part += 2) {
    const size_t both[2] = {part, part + 1 < parts ? part + 1 : part};
    V16 w[8];
    bool ordinary = true;
    for (size_t i = 0; i < 2; ++i) {
      V16 v[8];
      for (size_t r = 0; r < 8; ++r) v[r] = load_row(tiles, both[i], r, q);
      // As in IdctTiles.
      ordinary = ordinary && hn::AllTrue(d16, hn::Eq(v[0], hn::ShiftRight<2>(hn::ShiftLeft<2>(v[0]))));
      pass_to_4<12>(v, w + 4 * i);
    }
    if (!ordinary) [[unlikely]] {
      const size_t tile = part / kPartsPerTile;
      reference::idct_tiles_4x4(tiles + tile * kTileCoefficients, both[1] / kPartsPerTile - tile + 1, quant,
                                out + 16 * tile, out_stride);
      continue;
    }
    transpose8(w);
    V16 columns[4];
    pass_to_4<19>(w, columns);
    for (V16& column : columns) column = hn::SaturatedAdd(column, centre);
    const V8 even = pack_bytes(columns[0], columns[2]);
    const V8 odd = pack_bytes(columns[1], columns[3]);
    const V16 left = hn::BitCast(d16, hn::InterleaveLower(d8, even, odd));  // columns 0 and 1
    const V16 right = hn::BitCast(d16, hn::InterleaveUpper(d8, even, odd));
    alignas(64) uint8_t rows[2][2 * kLanes];  // of each part: block after block, four rows of four
    hn::StoreU(hn::BitCast(d8, hn::InterleaveLower(d16, left, right)), d8, rows[0]);
    hn::StoreU(hn::BitCast(d8, hn::InterleaveUpper(d16, left, right)), d8, rows[1]);
    for (size_t i = 0; i < 2; ++i) {
      for (size_t block = 0; block < kBlocksPerPart; ++block) {
        uint8_t* const to = out + 4 * (both[i] * kBlocksPerPart + block);
        for (size_t r = 0; r < 4; ++r) std::memcpy(to + r * out_stride, rows[i] + 16 * block + 4 * r, 4);
      }
    }
  }
}

HWY_INLINE Halves odd_part_of_2(V16 v1, V16 v3, V16 v5, V16 v7) {
  return Pairs(v1, v3).times(pair(29692, -10426)) + Pairs(v5, v7).times(pair(6967, -5906));
}

// Four parts at a time.
void IdctTiles2x2(const int16_t* tiles, size_t count, const uint16_t* quant, uint8_t* out, size_t out_stride) {
  V16 q[8];
  load_quant(quant, q);
  const size_t parts = count * kPartsPerTile;
  const V16 most = hn::Set(d16, 32767);
  const V16 least = hn::Set(d16, -32768);
  const V16 zero = hn::Zero(d16);
  const V16 centre = hn::Set(d16, 128);
  const V16 white = hn::Set(d16, 255);
  for (size_t part = 0; part < parts; part += 4) {
    size_t four[4];
    V16 w[8];
    auto extreme = hn::Eq(zero, most);
    for (size_t i = 0; i < 4; ++i) {
      four[i] = part + i < parts ? part + i : parts - 1;
      const auto row = [&](size_t r) HWY_ATTR { return load_row(tiles, four[i], r, q); };
      const Halves even = shifted_up<1>(row(0), hn::Set(d32, 1 << 12));
      const Halves odd = odd_part_of_2(row(1), row(3), row(5), row(7));
      w[2 * i] = descale<13>(even + odd);
      w[2 * i + 1] = descale<13>(even - odd);
    }
    for (const V16& v : w) extreme = hn::Or(extreme, hn::Or(hn::Eq(v, most), hn::Eq(v, least)));
    // Where 16 bits hold the first pass's values; and so it is in real pictures.
    if (!hn::AllFalse(d16, extreme)) [[unlikely]] {
      const size_t tile = part / kPartsPerTile;
      reference::idct_tiles_2x2(tiles + tile * kTileCoefficients, four[3] / kPartsPerTile - tile + 1, quant,
                                out + 8 * tile, out_stride);
      continue;
    }
    transpose8(w);
    const Halves even = shifted_up<1>(w[0], hn::Set(d32, 1 << 19));
    const Halves odd = odd_part_of_2(w[1], w[3], w[5], w[7]);
    const V16 left = hn::Min(hn::Max(hn::SaturatedAdd(descale<20>(even + odd), centre), zero), white);
    const V16 right = hn::Min(hn::Max(hn::SaturatedAdd(descale<20>(even - odd), centre), zero), white);
    alignas(64) uint8_t rows[2 * kLanes];  // block by block of a part: two rows of two, of the first to the fourth part
    hn::StoreU(hn::BitCast(d8, hn::Or(left, hn::ShiftLeft<8>(right))), d8, rows);
    for (size_t i = 0; i < 4; ++i) {
      for (size_t block = 0; block < kBlocksPerPart; ++block) {
        uint8_t* const to = out + 2 * (four[i] * kBlocksPerPart + block);
        std::memcpy(to, rows + 16 * block + 4 * i, 2);
        std::memcpy(to + out_stride, rows + 16 * block + 4 * i + 2, 2);
      }
    }
  }
}

HWY_INLINE V16 three_and_one(V16 near, V16 far) {
  return hn::Add(hn::Add(near, hn::Add(near, near)), far);
}

// Two outputs of each sample, the left one in the lower byte.
HWY_INLINE void store_pairs(V16 left, V16 right, uint8_t* to) {
  hn::StoreU(hn::BitCast(d8, hn::Or(left, hn::ShiftLeft<8>(right))), d8, to);
}

void Upsample2x1(const uint8_t* in, size_t count, uint8_t* out) {
  const V16 one = hn::Set(d16, 1);
  const V16 two = hn::Set(d16, 2);
  for (size_t i = 0; i < count; i += kLanes) {
    const V16 near = load_wide(in + i);
    const V16 left = hn::ShiftRight<2>(hn::Add(three_and_one(near, load_wide(in + i - 1)), one));
    const V16 right = hn::ShiftRight<2>(hn::Add(three_and_one(near, load_wide(in + i + 1)), two));
    store_pairs(left, right, out + 2 * i);
  }
}

void Upsample2x2(const uint8_t* near, const uint8_t* far, size_t count, uint8_t* out) {
  const V16 seven = hn::Set(d16, 7);
  const V16 eight = hn::Set(d16, 8);
  for (size_t i = 0; i < count; i += kLanes) {
    const V16 sum = three_and_one(load_wide(near + i), load_wide(far + i));
    const V16 before = three_and_one(load_wide(near + i - 1), load_wide(far + i - 1));
    const V16 after = three_and_one(load_wide(near + i + 1), load_wide(far + i + 1));
    store_pairs(hn::ShiftRight<4>(hn::Add(three_and_one(sum, before), eight)),
                hn::ShiftRight<4>(hn::Add(three_and_one(sum, after), seven)), out + 2 * i);
  }
}

void Upsample1x2(const uint8_t* near, const uint8_t* far, int bias, size_t count, uint8_t* out) {
  const V16 add = hn::Set(d16, static_cast<int16_t>(bias));
  for (size_t i = 0; i < count; i += kLanes) {
    const V16 sum = hn::Add(three_and_one(load_wide(near + i), load_wide(far + i)), add);
    hn::StoreU(hn::DemoteTo(half8, hn::ShiftRight<2>(sum)), half8, out + i);
  }
}

// 1.402 = 1 + 26345 / 2^16, 1.772 = 2 - 14942 / 2^16, each rounded as libjpeg's tables are; green's factors are
// -22554 / 2^16 and 18734 / 2^16 - 1.
struct Colours {
  V16 red, green, blue;

  HWY_INLINE void set(V16 y, V16 cb, V16 cr) {
    const V16 centre = hn::Set(d16, 128);
    const V16 one = hn::Set(d16, 1);
    const Halves half{hn::Set(d32, 32768), hn::Set(d32, 32768)};
    cb = hn::Sub(cb, centre);
    cr = hn::Sub(cr, centre);
    const V16 cb2 = hn::Add(cb, cb);
    const V16 cr2 = hn::Add(cr, cr);
    const V16 more_red = hn::ShiftRight<1>(hn::Add(hn::MulHigh(cr2, hn::Set(d16, 26345)), one));
    const V16 more_blue = hn::ShiftRight<1>(hn::Add(hn::MulHigh(cb2, hn::Set(d16, -14942)), one));
    const V16 more_green = descale<16>(Pairs(cb, cr).times(pair(-22554, 18734)) + half);
    red = hn::Add(y, hn::Add(more_red, cr));
    green = hn::Add(y, hn::Sub(more_green, cr));
    blue = hn::Add(y, hn::Add(more_blue, cb2));
  }
};

void YccRowToRgb(const uint8_t* y, const uint8_t* cb, const uint8_t* cr, size_t count, uint8_t* rgb) {
  for (size_t i = 0; i < count; i += kLanes) {
    Colours c;
    c.set(load_wide(y + i), load_wide(cb + i), load_wide(cr + i));
    hn::StoreInterleaved3(hn::DemoteTo(half8, c.red), hn::DemoteTo(half8, c.green), hn::DemoteTo(half8, c.blue), half8,
                          rgb + 3 * i);
  }
}

// Widening by interleaving with zeros is undone by packing: in each 128-bit part bytes are in order again.
HWY_INLINE V16 lower_half(V8 v) {
  return hn::BitCast(d16, hn::InterleaveLower(d8, v, hn::Zero(d8)));
}
HWY_INLINE V16 upper_half(V8 v) {
  return hn::BitCast(d16, hn::InterleaveUpper(d8, v, hn::Zero(d8)));
}

void YccRowToPlanes(const uint8_t* y, const uint8_t* cb, const uint8_t* cr, size_t count, const PlanarRow& to) {
  for (size_t i = 0; i < count; i += 2 * kLanes) {
    const V8 vy = hn::LoadU(d8, y + i);
    const V8 vcb = hn::LoadU(d8, cb + i);
    const V8 vcr = hn::LoadU(d8, cr + i);
    Colours a;
    Colours b;
    a.set(lower_half(vy), lower_half(vcb), lower_half(vcr));
    b.set(upper_half(vy), upper_half(vcb), upper_half(vcr));
    hn::StoreU(pack_bytes(a.red, b.red), d8, to.red + i);
    hn::StoreU(pack_bytes(a.green, b.green), d8, to.green + i);
    hn::StoreU(pack_bytes(a.blue, b.blue), d8, to.blue + i);
  }
}

void GreyRowToRgb(const uint8_t* grey, size_t count, uint8_t* rgb) {
  for (size_t i = 0; i < count; i += kLanes) {
    const auto v = hn::LoadU(half8, grey + i);
    hn::StoreInterleaved3(v, v, v, half8, rgb + 3 * i);
  }
}

#else

void IdctTiles(const int16_t* tiles, size_t count, const uint16_t* quant, uint8_t* out, size_t out_stride) {
  reference::idct_tiles(tiles, count, quant, out, out_stride);
}
void IdctTiles4x4(const int16_t* tiles, size_t count, const uint16_t* quant, uint8_t* out, size_t out_stride) {
  reference::idct_tiles_4x4(tiles, count, quant, out, out_stride);
}
void IdctTiles2x2(const int16_t* tiles, size_t count, const uint16_t* quant, uint8_t* out, size_t out_stride) {
  reference::idct_tiles_2x2(tiles, count, quant, out, out_stride);
}
void Upsample2x1(const uint8_t* in, size_t count, uint8_t* out) {
  reference::upsample_2x1(in, count, out);
}
void Upsample2x2(const uint8_t* near, const uint8_t* far, size_t count, uint8_t* out) {
  reference::upsample_2x2(near, far, count, out);
}
void Upsample1x2(const uint8_t* near, const uint8_t* far, int bias, size_t count, uint8_t* out) {
  reference::upsample_1x2(near, far, bias, count, out);
}
void YccRowToRgb(const uint8_t* y, const uint8_t* cb, const uint8_t* cr, size_t count, uint8_t* rgb) {
  reference::ycc_row_to_rgb(y, cb, cr, count, rgb);
}
void YccRowToPlanes(const uint8_t* y, const uint8_t* cb, const uint8_t* cr, size_t count, const PlanarRow& to) {
  reference::ycc_row_to_planes(y, cb, cr, count, to);
}
void GreyRowToRgb(const uint8_t* grey, size_t count, uint8_t* rgb) {
  reference::grey_row_to_rgb(grey, count, rgb);
}

#endif

const char* TargetName() {
  return hwy::TargetName(HWY_TARGET);
}

}  // namespace HWY_NAMESPACE
}  // namespace penstock::jpeg_vectors
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace penstock {
namespace jpeg_vectors {
HWY_EXPORT(IdctTiles);
HWY_EXPORT(IdctTiles4x4);
HWY_EXPORT(IdctTiles2x2);
HWY_EXPORT(Upsample2x1);
HWY_EXPORT(Upsample2x2);
HWY_EXPORT(Upsample1x2);
HWY_EXPORT(YccRowToRgb);
HWY_EXPORT(YccRowToPlanes);
HWY_EXPORT(GreyRowToRgb);
HWY_EXPORT(TargetName);
}  // namespace jpeg_vectors
using namespace jpeg_vectors;  // for the dispatch macros alone

void idct_tiles(const int16_t* tiles, size_t count, const uint16_t* quant, uint8_t* out, size_t out_stride) {
  HWY_DYNAMIC_DISPATCH(IdctTiles)(tiles, count, quant, out, out_stride);
}

void idct_tiles_4x4(const int16_t* tiles, size_t count, const uint16_t* quant, uint8_t* out, size_t out_stride) {
  HWY_DYNAMIC_DISPATCH(IdctTiles4x4)(tiles, count, quant, out, out_stride);
}

void idct_tiles_2x2(const int16_t* tiles, size_t count, const uint16_t* quant, uint8_t* out, size_t out_stride) {
  HWY_DYNAMIC_DISPATCH(IdctTiles2x2)(tiles, count, quant, out, out_stride);
}

// A value of every 64: nothing for vectors.
void idct_tiles_1x1(const int16_t* tiles, size_t count, const uint16_t* quant, uint8_t* out) {
  reference::idct_tiles_1x1(tiles, count, quant, out);
}

void upsample_2x1(const uint8_t* in, size_t count, uint8_t* out) {
  HWY_DYNAMIC_DISPATCH(Upsample2x1)(in, count, out);
}

void upsample_2x2(const uint8_t* near, const uint8_t* far, size_t count, uint8_t* out) {
  HWY_DYNAMIC_DISPATCH(Upsample2x2)(near, far, count, out);
}

void upsample_1x2(const uint8_t* near, const uint8_t* far, int bias, size_t count, uint8_t* out) {
  HWY_DYNAMIC_DISPATCH(Upsample1x2)(near, far, bias, count, out);
}

void ycc_row_to_rgb(const uint8_t* y, const uint8_t* cb, const uint8_t* cr, size_t count, uint8_t* rgb) {
  HWY_DYNAMIC_DISPATCH(YccRowToRgb)(y, cb, cr, count, rgb);
}

void ycc_row_to_planes(const uint8_t* y, const uint8_t* cb, const uint8_t* cr, size_t count, const PlanarRow& to) {
  HWY_DYNAMIC_DISPATCH(YccRowToPlanes)(y, cb, cr, count, to);
}

void grey_row_to_rgb(const uint8_t* grey, size_t count, uint8_t* rgb) {
  HWY_DYNAMIC_DISPATCH(GreyRowToRgb)(grey, count, rgb);
}

const char* jpeg_kernel_target() {
  return HWY_DYNAMIC_DISPATCH(TargetName)();
}

}  // namespace penstock
#endif
