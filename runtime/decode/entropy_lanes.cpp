#include "runtime/decode/entropy_lanes.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/decode/entropy_lanes.cpp"
#include <hwy/foreach_target.h>  // compiles the rest of this file once per target
#include <hwy/highway.h>

#include <array>
#include <bit>

#include "runtime/decode/coefficient_tiles.h"
#include "runtime/decode/zigzag.h"

HWY_BEFORE_NAMESPACE();
namespace penstock::lane_vectors {
namespace HWY_NAMESPACE {

// AVX-512's own intrinsics: the code lives on gathers, scatters and masks of 16 lanes. With AVX2 (8 lanes, no scatter)
// the same steps are no faster than entropy.h.
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3

using V = __m512i;
// Lanes of a group. A second group would hide its gathers behind the first one's, and leave more lanes idle at the end of
// a crop, which costs more.
constexpr size_t width = 16;
constexpr size_t groups = most_lanes / width;
constexpr int lookups_per_fetch = 4;
// A lane holds 57 bits or more after a fetch; an entry of the tables takes 22 at most.
constexpr uint32_t held_bits = 57;
constexpr uint32_t most_used_before_lookup = held_bits - 22;
constexpr uint32_t block_bytes = 128;
constexpr uint32_t idle_place = 128;  // in the scratch

HWY_INLINE V all(uint32_t value) {
  return _mm512_set1_epi32(static_cast<int>(value));
}
HWY_INLINE __m256i lower(V v) {
  return _mm512_castsi512_si256(v);
}
HWY_INLINE __m256i upper(V v) {
  return _mm512_extracti64x4_epi64(v, 1);
}

// What a group keeps in memory while its lanes change their stretches.
struct alignas(64) Saved {
  uint32_t bit[width], end_bit[width], block[width], next[width], left[width], turn[width], turns[width];
  uint32_t dc[width], ac[width];
};

// And in registers, while they decode. Numbers of 32 bits, one a lane; the bits themselves 64 a lane, left-aligned.
struct Group {
  V bits_a, bits_b;  // of lanes 0 to 7 and 8 to 15
  V used;            // bits taken since the fetch
  V next;            // twice the number of the next coefficient; 0 to 126
  V block;           // byte where the block begins
  V left;            // blocks of the stretch; 0: idle
  V turn;            // four times the block's number within the MCU
};

// Codes that the tables do not hold. A lane whose bits do not suffice stands still until the next fetch.
HWY_NOINLINE void look_up_long_codes(const LaneTables& tables, V window, V used, V number, V& how, V& values,
                                     uint32_t& live, uint32_t& failed) {
  alignas(64) uint32_t bits[width], taken[width], numbers[width], entry[width], value[width];
  _mm512_store_si512(bits, window);
  _mm512_store_si512(taken, used);
  _mm512_store_si512(numbers, number);
  _mm512_store_si512(entry, how);
  _mm512_store_si512(value, values);
  for (uint32_t left = _mm512_movepi32_mask(how); left != 0; left &= left - 1) {
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
    if (length == 0 || taken[i] + takes > held_bits) {
      if (length == 0) failed |= 1U << i;
      live &= ~(1U << i);
      continue;
    }
    const bool ends = !dc && size == 0 && run != 15;
    entry[i] = takes | (ends ? 1U : run + 1) << 11 | (ends ? LaneTables::block_end << 17 : 0U);
    if (size > 0) {
      const auto raw = static_cast<unsigned>(wide << length >> (64 - size));
      value[i] = static_cast<uint16_t>(extend_value(raw, size));
    }
  }
  how = _mm512_load_si512(entry);
  values = _mm512_load_si512(value);
}

HWY_INLINE void fetch(const uint8_t* bytes, V bit, Group& g) {
  const V reversed = _mm512_broadcast_i32x4(_mm_setr_epi8(7, 6, 5, 4, 3, 2, 1, 0, 15, 14, 13, 12, 11, 10, 9, 8));
  const V at = _mm512_srli_epi32(bit, 3);
  const V within = _mm512_and_si512(bit, all(7));
  const V a = _mm512_i32gather_epi64(lower(at), bytes, 1);
  const V b = _mm512_i32gather_epi64(upper(at), bytes, 1);
  g.bits_a = _mm512_sllv_epi64(_mm512_shuffle_epi8(a, reversed), _mm512_cvtepu32_epi64(lower(within)));
  g.bits_b = _mm512_sllv_epi64(_mm512_shuffle_epi8(b, reversed), _mm512_cvtepu32_epi64(upper(within)));
  g.used = _mm512_setzero_si512();
}

// One lookup a lane. `failed` gathers lanes that met what is not a code, or went past their block's end.
template <bool first>
HWY_INLINE void look_up(const LaneTables& tables, const uint64_t* entries, uint8_t* out, const Saved& s, Group& g,
                        uint32_t& failed) {
  const V even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const V odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
  uint32_t live = _mm512_test_epi32_mask(g.left, g.left);
  if (!first) live = _mm512_mask_cmple_epu32_mask(static_cast<__mmask16>(live), g.used, all(most_used_before_lookup));

  const V window = _mm512_permutex2var_epi32(g.bits_a, odd, g.bits_b);  // the next 32 bits
  const V all_numbers =
      _mm512_mask_mov_epi32(_mm512_load_si512(s.dc), _mm512_test_epi32_mask(g.next, g.next), _mm512_load_si512(s.ac));
  const V number = _mm512_and_si512(_mm512_srlv_epi32(all_numbers, g.turn), all(15));
  const V index =
      _mm512_maskz_add_epi32(static_cast<__mmask16>(live), _mm512_srli_epi32(window, 32 - LaneTables::lookup_bits),
                             _mm512_slli_epi32(number, LaneTables::lookup_bits));
  const V entry_a = _mm512_i32gather_epi64(lower(index), entries, 8);
  const V entry_b = _mm512_i32gather_epi64(upper(index), entries, 8);
  V how = _mm512_permutex2var_epi32(entry_a, even, entry_b);
  V values = _mm512_permutex2var_epi32(entry_a, odd, entry_b);
  static_assert(LaneTables::long_entry == 1U << 31);
  if (_mm512_movepi32_mask(how) != 0) [[unlikely]] {
    look_up_long_codes(tables, window, g.used, number, how, values, live, failed);
  }

  // Open entries: the value is made of the last bits taken, JPEG's way; `values` is their mask.
  const V takes = _mm512_and_si512(how, all(63));
  const __mmask16 open = _mm512_test_epi32_mask(how, all(LaneTables::open_entry));
  const V raw = _mm512_and_si512(_mm512_srlv_epi32(window, _mm512_sub_epi32(all(32), takes)), values);
  const __mmask16 negative = _mm512_mask_cmple_epu32_mask(open, raw, _mm512_srli_epi32(values, 1));
  V pair = _mm512_mask_mov_epi32(values, open, raw);
  pair = _mm512_mask_sub_epi32(pair, negative, pair, values);

  // The second counts only where the first is not the last of its block: what follows that is another table's.
  const V after_first = _mm512_add_epi32(g.next, _mm512_and_si512(_mm512_srli_epi32(how, 10), all(62)));
  const __mmask16 both = _mm512_cmplt_epi32_mask(after_first, all(block_bytes));
  const auto alone = static_cast<__mmask16>(open | ~both);
  pair = _mm512_mask_and_epi32(pair, alone, pair, all(0xFFFF));
  const V place = _mm512_mask_add_epi32(all(idle_place), static_cast<__mmask16>(live), g.block, after_first);
  _mm512_i32scatter_epi32(out - 2, place, pair, 1);

  const V second_takes = _mm512_and_si512(_mm512_srli_epi32(how, 6), all(15));
  const V taken = _mm512_mask_sub_epi32(takes, static_cast<__mmask16>(~both), takes, second_takes);
  g.used = _mm512_add_epi32(g.used, taken);
  g.bits_a = _mm512_sllv_epi64(g.bits_a, _mm512_cvtepu32_epi64(lower(taken)));
  g.bits_b = _mm512_sllv_epi64(g.bits_b, _mm512_cvtepu32_epi64(upper(taken)));

  const V second_advance = _mm512_and_si512(_mm512_srli_epi32(how, 16), all(254));
  const V after = _mm512_mask_add_epi32(after_first, both, after_first, second_advance);
  const __mmask16 within_block = _mm512_cmplt_epi32_mask(after, all(block_bytes));
  const auto ended = static_cast<__mmask16>(~within_block);
  // Past the 64th, but not by an end of block, which leads further.
  failed |= _mm512_cmplt_epu32_mask(_mm512_sub_epi32(after, all(block_bytes + 2)),
                                    all(2 * LaneTables::block_end - block_bytes - 2));
  g.next = _mm512_maskz_mov_epi32(within_block, after);
  g.block = _mm512_mask_add_epi32(g.block, ended, g.block, all(block_bytes));
  g.left = _mm512_mask_sub_epi32(g.left, ended, g.left, all(1));
  const V turn = _mm512_mask_add_epi32(g.turn, ended, g.turn, all(4));
  g.turn = _mm512_maskz_mov_epi32(_mm512_cmpneq_epi32_mask(turn, _mm512_load_si512(s.turns)), turn);
}

class Run {
 public:
  Run(const LaneTables& tables, const uint8_t* bytes, int16_t* coefficients, LaneFeeder& feeder, LaneLog* log)
      : tables_(tables), bytes_(bytes), out_(reinterpret_cast<uint8_t*>(coefficients)), feeder_(feeder), log_(log) {}

  void operator()() {
    for (size_t lane = 0; lane < most_lanes; ++lane) feed(lane, nullptr);
    while (busy_ != 0) decode_until_a_stretch_ends();
  }

 private:
  void feed(size_t lane, const LaneEnd* end) {
    Saved& s = saved_[lane / width];
    const size_t i = lane % width;
    LaneUnit unit;
    s.next[i] = s.turn[i] = 0;
    if (!feeder_.feed(lane, end, unit)) {
      busy_ &= ~(1U << lane);
      s.bit[i] = s.left[i] = s.block[i] = 0;
      s.end_bit[i] = ~0U;
      return;
    }
    busy_ |= 1U << lane;
    s.bit[i] = unit.bit;
    s.end_bit[i] = unit.end_bit;
    s.block[i] = unit.out_byte;
    s.left[i] = unit.blocks;
    s.turns[i] = 4 * unit.layout->blocks;
    s.dc[i] = unit.layout->dc_tables;
    s.ac[i] = unit.layout->ac_tables;
  }

  void note(const V* bit, const Group* group) {
    uint32_t* const to = log_->add();
    if (to == nullptr) {
      log_ = nullptr;
      return;
    }
    for (size_t g = 0; g < groups; ++g) {
      const V rest =
          _mm512_or_si512(_mm512_or_si512(group[g].block, group[g].next), _mm512_slli_epi32(group[g].turn, 24));
      _mm512_storeu_si512(to + g * width, bit[g]);
      _mm512_storeu_si512(to + most_lanes + g * width, rest);
    }
  }

  void decode_until_a_stretch_ends() {
    Group group[groups];
    V bit[groups];
    uint32_t failed[groups] = {};
    const uint64_t* const entries = tables_.entries();
    for (size_t g = 0; g < groups; ++g) {
      bit[g] = _mm512_load_si512(saved_[g].bit);
      group[g].next = _mm512_load_si512(saved_[g].next);
      group[g].block = _mm512_load_si512(saved_[g].block);
      group[g].left = _mm512_load_si512(saved_[g].left);
      group[g].turn = _mm512_load_si512(saved_[g].turn);
    }
    uint32_t events = 0;
    do {
      if (log_ != nullptr) note(bit, group);
      for (size_t g = 0; g < groups; ++g) fetch(bytes_, bit[g], group[g]);
      for (size_t g = 0; g < groups; ++g) look_up<true>(tables_, entries, out_, saved_[g], group[g], failed[g]);
      HWY_UNROLL(lookups_per_fetch)
      for (int n = 1; n < lookups_per_fetch; ++n) {
        for (size_t g = 0; g < groups; ++g) look_up<false>(tables_, entries, out_, saved_[g], group[g], failed[g]);
      }
      for (size_t g = 0; g < groups; ++g) {
        bit[g] = _mm512_add_epi32(bit[g], group[g].used);
        const uint32_t stops = _mm512_testn_epi32_mask(group[g].left, group[g].left) |
                               _mm512_cmpgt_epu32_mask(bit[g], _mm512_load_si512(saved_[g].end_bit)) | failed[g];
        events |= stops << (g * width);
      }
      events &= busy_;
    } while (events == 0);
    for (size_t g = 0; g < groups; ++g) {
      _mm512_store_si512(saved_[g].bit, bit[g]);
      _mm512_store_si512(saved_[g].next, group[g].next);
      _mm512_store_si512(saved_[g].block, group[g].block);
      _mm512_store_si512(saved_[g].left, group[g].left);
      _mm512_store_si512(saved_[g].turn, group[g].turn);
    }
    for (; events != 0; events &= events - 1) {
      const auto lane = static_cast<size_t>(std::countr_zero(events));
      const Saved& s = saved_[lane / width];
      const size_t i = lane % width;
      LaneEnd end{LaneEnd::Why::all_blocks, {s.bit[i], s.block[i], s.next[i], s.turn[i]}};
      if (s.bit[i] > s.end_bit[i]) end.why = LaneEnd::Why::past_end;
      if ((failed[lane / width] >> i & 1) != 0) end.why = LaneEnd::Why::failed;
      feed(lane, &end);
    }
  }

  const LaneTables& tables_;
  const uint8_t* bytes_;
  uint8_t* out_;
  LaneFeeder& feeder_;
  LaneLog* log_;
  uint32_t busy_ = 0;
  Saved saved_[groups] = {};
};

void DecodeLanes(const LaneTables& tables, const uint8_t* bytes, int16_t* coefficients, LaneFeeder& feeder,
                 LaneLog* log) {
  Run(tables, bytes, coefficients, feeder, log)();
}

constexpr std::array<int16_t, 32> order_of_half(int half) {
  std::array<int16_t, 32> order{};
  for (size_t k = 0; k < 64; ++k) {
    const int place = zigzag_order[k] - 32 * half;
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
  for (; count > 0; --count, blocks += blocks_per_tile, tiles += tile_coefficients) {
    V top[blocks_per_tile];
    V bottom[blocks_per_tile];
    for (size_t i = 0; i < blocks_per_tile; ++i) {
      const V a = _mm512_loadu_si512(blocks[i]);
      const V b = _mm512_loadu_si512(blocks[i] + 32);
      top[i] = _mm512_permutex2var_epi16(a, first, b);
      bottom[i] = _mm512_permutex2var_epi16(a, second, b);
    }
    store_rows_of_four(top, tiles);
    store_rows_of_four(bottom, tiles + 128);
  }
}

bool LanesSupported() {
  return true;
}

#else

void DecodeLanes(const LaneTables&, const uint8_t*, int16_t*, LaneFeeder&, LaneLog*) {}

void ZigzagBlocksToTiles(const int16_t* const* blocks, size_t count, int16_t* tiles) {
  for (; count > 0; --count, blocks += blocks_per_tile, tiles += tile_coefficients) {
    for (size_t i = 0; i < blocks_per_tile; ++i) {
      for (size_t k = 0; k < 64; ++k) tiles[i * 8 + tile_offset(zigzag_order[k])] = blocks[i][k];
    }
  }
}

bool LanesSupported() {
  return false;
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace penstock::lane_vectors
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace penstock {
namespace lane_vectors {
HWY_EXPORT(DecodeLanes);
HWY_EXPORT(ZigzagBlocksToTiles);
HWY_EXPORT(LanesSupported);
}  // namespace lane_vectors
using namespace lane_vectors;  // for the dispatch macros alone

bool lanes_supported() {
  return HWY_DYNAMIC_DISPATCH(LanesSupported)();
}

void decode_lanes(const LaneTables& tables, const uint8_t* bytes, int16_t* coefficients, LaneFeeder& feeder,
                  LaneLog* log) {
  HWY_DYNAMIC_DISPATCH(DecodeLanes)(tables, bytes, coefficients, feeder, log);
}

void zigzag_blocks_to_tiles(const int16_t* const* blocks, size_t count, int16_t* tiles) {
  HWY_DYNAMIC_DISPATCH(ZigzagBlocksToTiles)(blocks, count, tiles);
}

}  // namespace penstock
#endif
