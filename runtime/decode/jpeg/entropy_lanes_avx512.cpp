#include "runtime/decode/jpeg/entropy_lanes.h"

// AVX-512 CPUs since Ice Lake and Zen 4: shifts across two numbers.
#define HWY_WANT_AVX3_DL

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/decode/jpeg/entropy_lanes_avx512.cpp"
#include <hwy/foreach_target.h>  // compiles the rest of this file once per target
#include <hwy/highway.h>

#include <array>
#include <bit>
#include <utility>

#include "runtime/decode/jpeg/coefficient_tiles.h"
#include "runtime/decode/jpeg/entropy_lanes_avx2.h"
#include "runtime/decode/jpeg/lane_refill.h"
#include "runtime/decode/jpeg/zigzag.h"

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3_DL
HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512vbmi2")  // which Highway 1.0.3 forgets
#else
HWY_BEFORE_NAMESPACE();
#endif
namespace penstock::lane_vectors {
namespace HWY_NAMESPACE {

// AVX-512's own intrinsics: the code lives on gathers, scatters and masks of 16 lanes. AVX2 has none of the latter two,
// and half the lanes: it goes another way (entropy_lanes_avx2.h).
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3

using V = __m512i;
// More lanes than a vector holds would hide the gathers of some behind those of others; but what they write leaves the
// nearest cache, and more of them are idle at the end of a crop, which costs as much.
static_assert(kMostLanes == sizeof(V) / sizeof(uint32_t));
constexpr int kLookupsPerFetch = 5;
// A lane holds 57 bits or more after a fetch; an entry of the tables takes 22 at most.
constexpr uint32_t kHeldBits = 57;
constexpr uint32_t kMostUsedBeforeLookup = kHeldBits - 22;
constexpr int kNextShift = 24;

HWY_INLINE V all(uint32_t value) {
  return _mm512_set1_epi32(static_cast<int>(value));
}
HWY_INLINE __m256i lower(V v) {
  return _mm512_castsi512_si256(v);
}
HWY_INLINE __m256i upper(V v) {
  return _mm512_extracti64x4_epi64(v, 1);
}

// The upper 32 bits of two numbers of 32 bits each, side by side, that are shifted left by 0 to 31.
HWY_INLINE V shifted_left(V high, V low, V by) {
#if HWY_TARGET <= HWY_AVX3_DL
  return _mm512_shldv_epi32(high, low, by);
#else
  return _mm512_or_si512(_mm512_sllv_epi32(high, by), _mm512_srlv_epi32(low, _mm512_sub_epi32(all(32), by)));
#endif
}

// What lanes have in registers while they decode: numbers of 32 bits, one a lane.
struct Lanes {
  V high, low;  // the bits that follow
  V used;       // bits taken since the fetch
  V most_used;  // the same with those of the last lookup's second symbol, whether it counts or not
  V next;       // in the highest byte: twice the number of the next coefficient, 0 to 126
  V block;      // byte where the block begins; not before its run's end: the lane is idle
  V mcu_block;  // a word of Turns
  V table;      // number of the table for the next lookup
  V furthest;   // that a coefficient has led, in bytes of its block
};

// The blocks of an MCU, as one table lookup a step: words by the block's number.
struct BlockSchedule {
  static constexpr int kNumberShift = 24;
  static constexpr int kAcShift = 28;

  explicit BlockSchedule(const LaneLayout& layout) {
    alignas(64) uint32_t words[kMostLanes] = {};
    alignas(64) uint32_t dc_numbers[kMostLanes] = {};
    for (uint32_t n = 0; n < layout.blocks; ++n) {
      const uint32_t next = n + 1 == layout.blocks ? 0 : n + 1;
      words[n] = next | n << kNumberShift | (layout.ac_tables >> (4 * n) & 15) << kAcShift;
      dc_numbers[n] = layout.dc_tables >> (4 * n) & 15;
    }
    word = _mm512_load_si512(words);
    dc = _mm512_load_si512(dc_numbers);
  }

  V word;  // bits 0 to 3: number of the block that follows; 24 to 27: the block's own; 28 to 31: its AC table's
  V dc;    // number of the DC table
};

// Codes that the tables do not hold. A lane whose bits do not suffice stands still until the next fetch.
HWY_NOINLINE void look_up_long_codes(const LaneTables& tables, V window, V used, V table, V& how, V& values,
                                     uint32_t& live, uint32_t& failed) {
  alignas(64) uint32_t bits[kMostLanes], taken[kMostLanes], numbers[kMostLanes], entry[kMostLanes], value[kMostLanes];
  _mm512_store_si512(bits, window);
  _mm512_store_si512(taken, used);
  _mm512_store_si512(numbers, table);
  _mm512_store_si512(entry, how);
  _mm512_store_si512(value, values);
  for (uint32_t left = _mm512_test_epi32_mask(how, all(LaneTables::kLongEntry)); left != 0; left &= left - 1) {
    const auto i = static_cast<size_t>(std::countr_zero(left));
    entry[i] = value[i] = 0;
    const uint64_t wide = uint64_t{bits[i]} << 32;
    const HuffmanCodes& codes = tables.codes(numbers[i]);
    int symbol = 0;
    const int length = codes.symbol(wide, symbol);
    const bool dc = codes.kind() == HuffmanCodes::Kind::dc;
    const int size = dc ? symbol : symbol & 15;
    const auto run = static_cast<uint32_t>(dc ? 0 : symbol >> 4);
    const auto takes = static_cast<uint32_t>(length + size);
    if (length == 0 || taken[i] + takes > kHeldBits) {
      if (length == 0) failed |= 1U << i;
      live &= ~(1U << i);
      continue;
    }
    entry[i] = LaneTables::entry_of(takes, run, !dc && size == 0 && run != 15);
    if (size > 0) {
      const auto raw = static_cast<unsigned>(wide << length >> (64 - size));
      value[i] = static_cast<uint16_t>(extend_value(raw, size));
    }
  }
  how = _mm512_load_si512(entry);
  values = _mm512_load_si512(value);
}

HWY_INLINE void fetch(const uint8_t* bytes, V bit, Lanes& g) {
  const V even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const V odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
  const V reversed = _mm512_broadcast_i32x4(_mm_setr_epi8(3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12));
  const V at = _mm512_srli_epi32(bit, 3);
  const V within = _mm512_and_si512(bit, all(7));
  const V a = _mm512_i32gather_epi64(lower(at), bytes, 1);
  const V b = _mm512_i32gather_epi64(upper(at), bytes, 1);
  const V high = _mm512_shuffle_epi8(_mm512_permutex2var_epi32(a, even, b), reversed);
  const V low = _mm512_shuffle_epi8(_mm512_permutex2var_epi32(a, odd, b), reversed);
  g.high = shifted_left(high, low, within);
  g.low = _mm512_sllv_epi32(low, within);
  g.used = _mm512_setzero_si512();
}

// One lookup a lane. `failed` gathers lanes that met what is not a code.
template <bool first>
HWY_INLINE void look_up(const LaneTables& tables, const uint64_t* entries, uint8_t* out,
                        const BlockSchedule& mcu_blocks, V end_block, Lanes& g, uint32_t& failed) {
  const V even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const V odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
  uint32_t live = _mm512_cmplt_epu32_mask(g.block, end_block);
  if (!first)
    live = _mm512_mask_cmple_epu32_mask(static_cast<__mmask16>(live), g.most_used, all(kMostUsedBeforeLookup));

#if HWY_TARGET <= HWY_AVX3_DL
  const V index = _mm512_maskz_shldi_epi32(static_cast<__mmask16>(live), g.table, g.high, LaneTables::kLookupBits);
#else
  const V index =
      _mm512_maskz_or_epi32(static_cast<__mmask16>(live), _mm512_srli_epi32(g.high, 32 - LaneTables::kLookupBits),
                            _mm512_slli_epi32(g.table, LaneTables::kLookupBits));
#endif
  const V entry_a = _mm512_i32gather_epi64(lower(index), entries, 8);
  const V entry_b = _mm512_i32gather_epi64(upper(index), entries, 8);
  V how = _mm512_permutex2var_epi32(entry_a, even, entry_b);
  V values = _mm512_permutex2var_epi32(entry_a, odd, entry_b);
  if (_mm512_test_epi32_mask(how, all(LaneTables::kLongEntry)) != 0) [[unlikely]] {
    look_up_long_codes(tables, g.high, g.used, g.table, how, values, live, failed);
  }

  // Twice the coefficients' numbers, in the highest byte. The second counts only where the first is not the last of its
  // block: what follows that is another table's.
  const V after_first = _mm512_add_epi32(_mm512_rol_epi32(how, 8), g.next);
  const V after = _mm512_add_epi32(how, g.next);
  const __mmask16 one = _mm512_movepi32_mask(after_first);
  const __mmask16 ended = _mm512_movepi32_mask(after);

  // Open entries: the value is made of the last bits taken, JPEG's way; `values` is their mask.
  const __mmask16 open = _mm512_test_epi32_mask(how, all(LaneTables::kOpenEntry));
  const V raw = _mm512_and_si512(_mm512_rolv_epi32(g.high, how), values);
  const __mmask16 negative = _mm512_mask_cmple_epu32_mask(open, raw, _mm512_srli_epi32(values, 1));
  V pair = _mm512_mask_mov_epi32(values, open, raw);
  pair = _mm512_mask_sub_epi32(pair, negative, pair, values);
  pair = _mm512_mask_and_epi32(pair, static_cast<__mmask16>(open | one), pair, all(0xFFFF));
  const V reached = _mm512_srli_epi32(after_first, kNextShift);
  g.furthest = _mm512_max_epu32(g.furthest, reached);
  _mm512_mask_i32scatter_epi32(out - 2, static_cast<__mmask16>(live), _mm512_add_epi32(g.block, reached), pair, 1);

  // Both outcomes are made before it is known which one holds: the next lookup waits for this.
  const V all_bits = _mm512_and_si512(how, all(31));
  const V first_bits = _mm512_and_si512(_mm512_srli_epi32(how, 6), all(31));
  const V after_all = shifted_left(g.high, g.low, all_bits);
  g.high = _mm512_mask_mov_epi32(after_all, one, shifted_left(g.high, g.low, first_bits));
  const V taken = _mm512_mask_mov_epi32(all_bits, one, first_bits);
  g.most_used = _mm512_add_epi32(g.used, all_bits);
  g.used = _mm512_add_epi32(g.used, taken);
  g.low = _mm512_sllv_epi32(g.low, taken);

  const V table = _mm512_mask_srli_epi32(g.table, static_cast<__mmask16>(live), g.mcu_block, BlockSchedule::kAcShift);
  g.table = _mm512_mask_mov_epi32(table, ended, _mm512_permutexvar_epi32(g.mcu_block, mcu_blocks.dc));
  g.mcu_block = _mm512_mask_permutexvar_epi32(g.mcu_block, ended, g.mcu_block, mcu_blocks.word);
  g.next = _mm512_maskz_and_epi32(static_cast<__mmask16>(~ended), after, all(0xFF000000));
  g.block = _mm512_mask_add_epi32(g.block, ended, g.block, all(kBlockBytes));
}

class Run {
 public:
  Run(const LaneTables& tables, const LaneLayout& layout, const uint8_t* bytes, int16_t* coefficients,
      LaneFeeder& feeder, LaneLog* log)
      : tables_(tables),
        schedule_(layout),
        bytes_(bytes),
        out_(reinterpret_cast<uint8_t*>(coefficients)),
        feeder_(feeder),
        log_(log) {}

  void operator()() {
    rest_.feed_all(feeder_);
    while (rest_.busy != 0) decode_until_an_mcu_run_ends();
  }

 private:
  void note(V bit, const Lanes& lanes) {
    uint32_t* const to = log_->add();
    if (to == nullptr) {
      log_ = nullptr;
      return;
    }
    const V place = _mm512_or_si512(lanes.block, _mm512_srli_epi32(lanes.next, kNextShift));
    const V mcu_block = _mm512_and_si512(lanes.mcu_block, all(15U << BlockSchedule::kNumberShift));
    _mm512_storeu_si512(to, bit);
    _mm512_storeu_si512(to + kMostLanes, _mm512_or_si512(place, mcu_block));
  }

  void decode_until_an_mcu_run_ends() {
    const uint64_t* const entries = tables_.entries();
    const V end_block = _mm512_load_si512(rest_.end_block);
    const V end_bit = _mm512_load_si512(rest_.end_bit);
    const V next = _mm512_load_si512(rest_.next);
    const V mcu_block = _mm512_load_si512(rest_.mcu_block);
    V bit = _mm512_load_si512(rest_.bit);
    Lanes lanes;
    lanes.next = _mm512_slli_epi32(next, kNextShift);
    lanes.block = _mm512_load_si512(rest_.block);
    lanes.mcu_block = _mm512_permutexvar_epi32(mcu_block, schedule_.word);
    lanes.table = _mm512_mask_permutexvar_epi32(_mm512_srli_epi32(lanes.mcu_block, BlockSchedule::kAcShift),
                                                _mm512_testn_epi32_mask(next, next), mcu_block, schedule_.dc);
    lanes.furthest = _mm512_setzero_si512();
    uint32_t failed = 0;
    uint32_t events = 0;
    do {
      if (log_ != nullptr) note(bit, lanes);
      fetch(bytes_, bit, lanes);
      look_up<true>(tables_, entries, out_, schedule_, end_block, lanes, failed);
      HWY_UNROLL(kLookupsPerFetch)
      for (int n = 1; n < kLookupsPerFetch; ++n) {
        look_up<false>(tables_, entries, out_, schedule_, end_block, lanes, failed);
      }
      bit = _mm512_add_epi32(bit, lanes.used);
      failed |= _mm512_cmpgt_epu32_mask(lanes.furthest, all(kBlockBytes));
      events = rest_.busy &
               (_mm512_cmpge_epu32_mask(lanes.block, end_block) | _mm512_cmpgt_epu32_mask(bit, end_bit) | failed);
    } while (events == 0);
    _mm512_store_si512(rest_.bit, bit);
    _mm512_store_si512(rest_.next, _mm512_srli_epi32(lanes.next, kNextShift));
    _mm512_store_si512(rest_.block, lanes.block);
    _mm512_store_si512(rest_.mcu_block,
                       _mm512_and_si512(_mm512_srli_epi32(lanes.mcu_block, BlockSchedule::kNumberShift), all(15)));
    rest_.feed_ended(feeder_, events, failed);
  }

  const LaneTables& tables_;
  const BlockSchedule schedule_;
  const uint8_t* bytes_;
  uint8_t* out_;
  LaneFeeder& feeder_;
  LaneLog* log_;
  LaneRefill rest_;
};

void DecodeLanes(const LaneTables& tables, const LaneLayout& layout, const uint8_t* bytes, int16_t* coefficients,
                 LaneFeeder& feeder, LaneLog* log) {
  Run(tables, layout, bytes, coefficients, feeder, log)();
}

Unstuffed UnstuffInVectors(const uint8_t* in, const uint8_t* in_end, uint8_t* out, const uint8_t* out_end) {
#if HWY_TARGET <= HWY_AVX3_DL
  constexpr ptrdiff_t step = sizeof(V);
  while (in_end - in > step && out_end - out >= step) {
    const V bytes = _mm512_loadu_si512(in);
    const uint64_t ff = _mm512_cmpeq_epi8_mask(bytes, _mm512_set1_epi8(-1));
    const uint64_t before_zero = _mm512_testn_epi8_mask(_mm512_loadu_si512(in + 1), _mm512_set1_epi8(-1));
    if ((ff & ~before_zero) != 0) break;
    const uint64_t kept = ~(ff << 1);
    _mm512_storeu_si512(out, _mm512_maskz_compress_epi8(kept, bytes));
    in += step + static_cast<ptrdiff_t>(ff >> 63);
    out += std::popcount(kept);
  }
#else
  (void)in_end;
  (void)out_end;
#endif
  return {in, out};
}

constexpr std::array<int16_t, 32> order_of_half(int half) {
  std::array<int16_t, 32> order{};
  for (size_t k = 0; k < 64; ++k) {
    const int place = kZigzagOrder[k] - 32 * half;
    if (place >= 0 && place < 32) order[static_cast<size_t>(place)] = static_cast<int16_t>(k);
  }
  return order;
}

// Each of four vectors is four rows of one block; the stored ones are one row of four blocks.
HWY_INLINE void store_rows_of_four(const V* block, int16_t* to) {
  const V a = _mm512_shuffle_i32x4(block[0], block[1], 0x44);
  const V b = _mm512_shuffle_i32x4(block[2], block[3], 0x44);
  const V c = _mm512_shuffle_i32x4(block[0], block[1], 0xEE);
  const V d = _mm512_shuffle_i32x4(block[2], block[3], 0xEE);
  _mm512_storeu_si512(to, _mm512_shuffle_i32x4(a, b, 0x88));
  _mm512_storeu_si512(to + 32, _mm512_shuffle_i32x4(a, b, 0xDD));
  _mm512_storeu_si512(to + 64, _mm512_shuffle_i32x4(c, d, 0x88));
  _mm512_storeu_si512(to + 96, _mm512_shuffle_i32x4(c, d, 0xDD));
}

void ZigzagBlocksToTiles(const int16_t* const* blocks, size_t count, int16_t* tiles) {
  alignas(64) static constexpr auto order0 = order_of_half(0);
  alignas(64) static constexpr auto order1 = order_of_half(1);
  const V first = _mm512_load_si512(order0.data());
  const V second = _mm512_load_si512(order1.data());
  for (; count > 0; --count, blocks += kBlocksPerTile, tiles += kTileCoefficients) {
    V top[kBlocksPerTile];
    V bottom[kBlocksPerTile];
    for (size_t i = 0; i < kBlocksPerTile; ++i) {
      const V a = _mm512_loadu_si512(blocks[i]);
      const V b = _mm512_loadu_si512(blocks[i] + 32);
      top[i] = _mm512_permutex2var_epi16(a, first, b);
      bottom[i] = _mm512_permutex2var_epi16(a, second, b);
    }
    store_rows_of_four(top, tiles);
    store_rows_of_four(bottom, tiles + 128);
  }
}

LaneShape Shape() {
  return {kMostLanes, kLookupsPerFetch, "AVX-512"};
}

#elif HWY_ARCH_X86 && HWY_TARGET == HWY_AVX2

void DecodeLanes(const LaneTables& tables, const LaneLayout& layout, const uint8_t* bytes, int16_t* coefficients,
                 LaneFeeder& feeder, LaneLog* log) {
  decode_avx2_lanes(tables, layout, bytes, coefficients, feeder, log);
}

namespace hn = hwy::HWY_NAMESPACE;

// Which bytes of each eighth of a block in zigzag order go to a row, for shuffles that make zeros of 0x80.
struct RowBytes {
  alignas(16) uint8_t from[8][16];
  bool any[8];
};
constexpr std::array<RowBytes, 8> row_bytes() {
  std::array<RowBytes, 8> rows{};
  for (RowBytes& row : rows) {
    for (auto& eighth : row.from) {
      for (uint8_t& byte : eighth) byte = 0x80;
    }
  }
  for (size_t k = 0; k < 64; ++k) {
    RowBytes& row = rows[kZigzagOrder[k] / 8];
    row.any[k / 8] = true;
    for (size_t byte = 0; byte < 2; ++byte) {
      row.from[k / 8][kZigzagOrder[k] % 8 * 2 + byte] = static_cast<uint8_t>(k % 8 * 2 + byte);
    }
  }
  return rows;
}
alignas(16) constexpr auto rows_of_zigzag = row_bytes();

// Two blocks side by side.
using Bytes = hn::FixedTag<uint8_t, 32>;
HWY_INLINE hn::Vec<Bytes> eighth_of(const int16_t* const* blocks, size_t n) {
  const hn::FixedTag<uint8_t, 16> half;
  return hn::Combine(Bytes{}, hn::LoadU(half, reinterpret_cast<const uint8_t*>(blocks[1] + 8 * n)),
                     hn::LoadU(half, reinterpret_cast<const uint8_t*>(blocks[0] + 8 * n)));
}

template <size_t row, size_t eighth>
HWY_INLINE void add_eighth(const hn::Vec<Bytes>* eighths, hn::Vec<Bytes>& sum) {
  if constexpr (rows_of_zigzag[row].any[eighth]) {
    const auto from = hn::LoadDup128(Bytes{}, rows_of_zigzag[row].from[eighth]);
    sum = hn::Or(sum, hn::TableLookupBytesOr0(eighths[eighth], from));
  }
}

template <size_t row>
HWY_INLINE void store_row(const hn::Vec<Bytes>* eighths, int16_t* tile) {
  auto sum = hn::Zero(Bytes{});
  [&]<size_t... eighth>(std::index_sequence<eighth...>) HWY_ATTR {
    (add_eighth<row, eighth>(eighths, sum), ...);
  }
  (std::make_index_sequence<8>{});
  hn::StoreU(sum, Bytes{}, reinterpret_cast<uint8_t*>(tile + 32 * row));
}

void ZigzagBlocksToTiles(const int16_t* const* blocks, size_t count, int16_t* tiles) {
  for (; count > 0; --count, blocks += kBlocksPerTile, tiles += kTileCoefficients) {
    for (size_t i = 0; i < kBlocksPerTile; i += 2) {
      hn::Vec<Bytes> eighths[8];
      for (size_t n = 0; n < 8; ++n) eighths[n] = eighth_of(blocks + i, n);
      store_row<0>(eighths, tiles + 8 * i);
      store_row<1>(eighths, tiles + 8 * i);
      store_row<2>(eighths, tiles + 8 * i);
      store_row<3>(eighths, tiles + 8 * i);
      store_row<4>(eighths, tiles + 8 * i);
      store_row<5>(eighths, tiles + 8 * i);
      store_row<6>(eighths, tiles + 8 * i);
      store_row<7>(eighths, tiles + 8 * i);
    }
  }
}

Unstuffed UnstuffInVectors(const uint8_t* in, const uint8_t*, uint8_t* out, const uint8_t*) {
  return {in, out};
}

LaneShape Shape() {
  return {kAvx2Lanes, kAvx2LookupsPerFetch, "AVX2"};
}

#else  // none

void DecodeLanes(const LaneTables&, const LaneLayout&, const uint8_t*, int16_t*, LaneFeeder&, LaneLog*) {}
void ZigzagBlocksToTiles(const int16_t* const*, size_t, int16_t*) {}
Unstuffed UnstuffInVectors(const uint8_t* in, const uint8_t*, uint8_t* out, const uint8_t*) {
  return {in, out};
}
LaneShape Shape() {
  return {};
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace penstock::lane_vectors
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3_DL
HWY_POP_ATTRIBUTES
#else
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace penstock {
namespace lane_vectors {
HWY_EXPORT(DecodeLanes);
HWY_EXPORT(UnstuffInVectors);
HWY_EXPORT(ZigzagBlocksToTiles);
HWY_EXPORT(Shape);
}  // namespace lane_vectors
using namespace lane_vectors;  // for the dispatch macros alone

LaneShape lane_shape() {
  return HWY_DYNAMIC_DISPATCH(Shape)();
}

void decode_lanes(const LaneTables& tables, const LaneLayout& layout, const uint8_t* bytes, int16_t* coefficients,
                  LaneFeeder& feeder, LaneLog* log) {
  HWY_DYNAMIC_DISPATCH(DecodeLanes)(tables, layout, bytes, coefficients, feeder, log);
}

Unstuffed unstuff_in_vectors(const uint8_t* in, const uint8_t* in_end, uint8_t* out, const uint8_t* out_end) {
  return HWY_DYNAMIC_DISPATCH(UnstuffInVectors)(in, in_end, out, out_end);
}

void zigzag_blocks_to_tiles(const int16_t* const* blocks, size_t count, int16_t* tiles) {
  HWY_DYNAMIC_DISPATCH(ZigzagBlocksToTiles)(blocks, count, tiles);
}

}  // namespace penstock
#endif
