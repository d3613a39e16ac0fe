#include "runtime/decode/jpeg/entropy_lanes_avx2.h"

#include <hwy/base.h>

#if HWY_ARCH_X86
#include <immintrin.h>

#include <bit>
#include <cstring>

#include "runtime/decode/jpeg/lane_refill.h"

// The caller has made sure that the CPU has these instructions.
HWY_PUSH_ATTRIBUTES("avx2,bmi,bmi2")
namespace penstock {
namespace {

using V = __m256i;
constexpr int kSetLanes = sizeof(V) / sizeof(uint32_t);
constexpr int kSets = 2;
static_assert(kSets * kSetLanes == kAvx2Lanes && kAvx2Lanes == kMostLanes);
constexpr uint32_t kHeldBits = 57;  // or more, after a fetch
constexpr int kNextShift = 24;
constexpr uint32_t kNumberMask = LaneTables::kMostTables - 1;
// A coefficient's two bytes end where its number says, so blocks are counted from two bytes before they begin.
constexpr uint32_t kBlockBias = 2;
// Marks, in Lanes::used, a lane that waits for the next fetch. Its next table is not to be had before.
constexpr uint32_t kWaits = 64;

HWY_INLINE V all(uint32_t value) {
  return _mm256_set1_epi32(static_cast<int>(value));
}
HWY_INLINE V load(const void* from) {
  return _mm256_loadu_si256(static_cast<const V*>(from));
}
HWY_INLINE void store(void* to, V v) {
  _mm256_storeu_si256(static_cast<V*>(to), v);
}
HWY_INLINE uint32_t signs(V v) {
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(v)));
}

// Numbers of 64 bits, one a lane, in the order in which AVX2 halves and joins vectors best: lanes 0, 1, 4, 5 and
// 2, 3, 6, 7.
struct Wide {
  V a, b;
};
HWY_INLINE Wide widened(V v) {
  return {_mm256_unpacklo_epi32(v, _mm256_setzero_si256()), _mm256_unpackhi_epi32(v, _mm256_setzero_si256())};
}
HWY_INLINE V lower_halves(const Wide& v) {
  return _mm256_castps_si256(_mm256_shuffle_ps(_mm256_castsi256_ps(v.a), _mm256_castsi256_ps(v.b), 0x88));
}
HWY_INLINE V upper_halves(const Wide& v) {
  return _mm256_castps_si256(_mm256_shuffle_ps(_mm256_castsi256_ps(v.a), _mm256_castsi256_ps(v.b), 0xDD));
}
// Where lane `i` is in memory, if `a` lies before `b`.
constexpr size_t place_in_wide(size_t i) {
  return (i & 2) * 2 + (i & 1) + (i & 4) / 2;
}

// 64 bits each, `scale` times the two numbers of 32 bits in `places` from `base` on.
template <size_t scale>
HWY_INLINE __m128d load_two(const uint8_t* base, uint64_t places) {
  // Not _mm_load_sd, which gcc takes for the load of an aligned double.
  const __m128d first = _mm_castsi128_pd(_mm_loadu_si64(base + scale * static_cast<uint32_t>(places)));
  return _mm_loadh_pd(first, reinterpret_cast<const double*>(base + scale * (places >> 32)));
}
template <size_t scale>
HWY_INLINE Wide load_eight(const uint8_t* base, V places) {
  const __m128i low = _mm256_castsi256_si128(places);
  const __m128i high = _mm256_extracti128_si256(places, 1);
  const __m128d lanes01 = load_two<scale>(base, static_cast<uint64_t>(_mm_cvtsi128_si64(low)));
  const __m128d lanes23 = load_two<scale>(base, static_cast<uint64_t>(_mm_extract_epi64(low, 1)));
  const __m128d lanes45 = load_two<scale>(base, static_cast<uint64_t>(_mm_cvtsi128_si64(high)));
  const __m128d lanes67 = load_two<scale>(base, static_cast<uint64_t>(_mm_extract_epi64(high, 1)));
  return {_mm256_castpd_si256(_mm256_insertf128_pd(_mm256_castpd128_pd256(lanes01), lanes45, 1)),
          _mm256_castpd_si256(_mm256_insertf128_pd(_mm256_castpd128_pd256(lanes23), lanes67, 1))};
}

// The blocks of an MCU, a word each: who goes on within the block takes the word as it is, who ends it shifts it by
// `kAtEnd`. Then its lowest three bits are the number of the block at hand, and its table's number is at `kTableBit`.
constexpr int kTableBit = LaneTables::kLookupBits;
constexpr int kAtEnd = 14;
// The table where the block begins is at kTableBit + kAtStart.
constexpr int kAtStart = 18;
V schedule_words(const LaneLayout& layout) {
  uint32_t words[kSetLanes] = {};
  for (uint32_t n = 0; n < layout.blocks; ++n) {
    const uint32_t next = n + 1 == layout.blocks ? 0 : n + 1;
    const uint32_t within = n | (layout.ac_tables >> (4 * n) & kNumberMask) << kTableBit;
    const uint32_t after = next | (layout.dc_tables >> (4 * next) & kNumberMask) << kTableBit;
    words[n] = within | after << kAtEnd | (layout.dc_tables >> (4 * n) & kNumberMask) << (kTableBit + kAtStart);
  }
  return load(words);
}

// What lanes have in registers while they decode: numbers of 32 bits, one a lane.
struct Lanes {
  V high, low;  // the bits that follow
  V used;       // bits taken since the fetch; and `waits`
  V next;       // in the highest byte: twice the number of the next coefficient, 0 to 126
  V block;      // byte where the block begins, less kBlockBias; not before its run's end: the lane is idle
  V mcu_block;  // one of schedule_words()
  V table;      // at kTableBit: number of the table for the next lookup
};

struct Found {
  Wide entries;
  V how;          // of lanes that take part; else 0
  V after_first;  // in the highest byte, as Lanes::next
  V live;
};

HWY_INLINE V after_first_of(V how, V next) {
  const V rotated = _mm256_broadcastsi128_si256(_mm_setr_epi8(3, 0, 1, 2, 7, 4, 5, 6, 11, 8, 9, 10, 15, 12, 13, 14));
  return _mm256_add_epi32(_mm256_shuffle_epi8(how, rotated), next);
}

// Not zero: past the block's end, and not by a single coefficient that is its last.
HWY_INLINE V rare_of(V after_first) {
  return _mm256_subs_epu16(after_first, all((kBlockBytes << kNextShift | LaneTables::kPairEntry << 8) - 1));
}

HWY_INLINE void fetch(const uint8_t* bytes, V bit, Lanes& g) {
  const V reversed = _mm256_broadcastsi128_si256(_mm_setr_epi8(7, 6, 5, 4, 3, 2, 1, 0, 15, 14, 13, 12, 11, 10, 9, 8));
  const Wide within = widened(_mm256_and_si256(bit, all(7)));
  Wide bits = load_eight<1>(bytes, _mm256_srli_epi32(bit, 3));
  bits.a = _mm256_sllv_epi64(_mm256_shuffle_epi8(bits.a, reversed), within.a);
  bits.b = _mm256_sllv_epi64(_mm256_shuffle_epi8(bits.b, reversed), within.b);
  g.high = upper_halves(bits);
  g.low = lower_halves(bits);
  g.used = _mm256_setzero_si256();
  const V begins = _mm256_cmpeq_epi32(g.next, _mm256_setzero_si256());
  g.table = _mm256_srlv_epi32(g.mcu_block, _mm256_and_si256(begins, all(kAtStart)));
}

// Whether the bits suffice need not be asked of the first two lookups of a fetch: not even what the tables do not hold
// takes more than 31, and with that the first leaves enough for the second.
template <int lookup>
HWY_INLINE Found find(const uint8_t* entries, V end_block, const Lanes& g) {
  static_assert(2 * LaneTables::kMostBits <= kHeldBits && 31 + LaneTables::kMostBits <= kHeldBits);
  Found f;
  f.live = _mm256_cmpgt_epi32(end_block, g.block);
  if constexpr (lookup > 1) {
    f.live = _mm256_andnot_si256(_mm256_cmpgt_epi32(g.used, all(kHeldBits - LaneTables::kMostBits)), f.live);
  }
  const V index = _mm256_or_si256(_mm256_srli_epi32(g.high, 32 - LaneTables::kLookupBits),
                                  _mm256_and_si256(g.table, all(kNumberMask << kTableBit)));
  f.entries = load_eight<sizeof(uint64_t)>(entries, index);
  f.how = _mm256_and_si256(lower_halves(f.entries), f.live);
  f.after_first = after_first_of(f.how, g.next);
  return f;
}

// `words`: schedule_words().
HWY_INLINE void take(const Found& f, V words, uint8_t* out, Lanes& g) {
  const V values = upper_halves(f.entries);
  const V after = _mm256_add_epi32(f.how, g.next);
  const V ended = _mm256_srai_epi32(after, 31);
  const V bits = _mm256_and_si256(f.how, all(31));
  const V others = _mm256_sub_epi32(all(32), bits);

  // Open entries: the value is made of the last bits taken, JPEG's way; `values` is their mask.
  const V raw = _mm256_and_si256(_mm256_srlv_epi32(g.high, others), values);
  const V positive = _mm256_cmpgt_epi32(raw, _mm256_srli_epi32(values, 1));
  const V value = _mm256_and_si256(_mm256_sub_epi32(raw, _mm256_andnot_si256(positive, values)), all(0xFFFF));
  const V open = _mm256_slli_epi32(f.how, 31 - std::countr_zero(LaneTables::kOpenEntry));
  const V pair = _mm256_castps_si256(
      _mm256_blendv_ps(_mm256_castsi256_ps(values), _mm256_castsi256_ps(value), _mm256_castsi256_ps(open)));
  const V reached = _mm256_srli_epi32(f.after_first, kNextShift);
  alignas(V) uint32_t places[kSetLanes];
  alignas(V) uint32_t pairs[kSetLanes];
  // Lanes that take no part store to the scratch bytes.
  store(places, _mm256_and_si256(f.live, _mm256_add_epi32(g.block, reached)));
  store(pairs, pair);

  g.high = _mm256_or_si256(_mm256_sllv_epi32(g.high, bits), _mm256_srlv_epi32(g.low, others));
  g.low = _mm256_sllv_epi32(g.low, bits);
  g.used = _mm256_add_epi32(g.used, bits);
  g.table = _mm256_srlv_epi32(g.mcu_block, _mm256_and_si256(ended, all(kAtEnd)));
  g.mcu_block = _mm256_permutevar8x32_epi32(words, g.table);
  g.next = _mm256_andnot_si256(ended, _mm256_and_si256(after, all(0xFF000000)));
  g.block = _mm256_add_epi32(g.block, _mm256_and_si256(ended, all(kBlockBytes)));

  // Through memory: taking numbers out of vectors needs the units that all the above is waiting for.
  asm volatile("" : "+m"(places), "+m"(pairs));
  HWY_UNROLL(8)
  for (int i = 0; i < kSetLanes; ++i) std::memcpy(out + places[i], &pairs[i], sizeof(uint32_t));
}

class Run {
 public:
  Run(const LaneTables& tables, const LaneLayout& layout, const uint8_t* bytes, int16_t* coefficients,
      LaneFeeder& feeder, LaneLog* log)
      : tables_(tables),
        schedule_words_(schedule_words(layout)),
        bytes_(bytes),
        out_(reinterpret_cast<uint8_t*>(coefficients)),
        feeder_(feeder),
        log_(log) {}

  void operator()() {
    rest_.feed_all(feeder_);
    while (rest_.busy != 0) decode_until_an_mcu_run_ends();
  }

 private:
  // Changes the entries of the lanes named, in entries_, to what their codes mean. Those that have failed come back in
  // the upper half, they and those whose bits do not suffice in the lower one.
  HWY_NOINLINE uint32_t resolve(uint32_t lanes, V high_bits, V low_bits, V used_bits, V nexts, V table_bits,
                                const Wide& entries) {
    uint32_t high[kSetLanes], low[kSetLanes], used[kSetLanes], next[kSetLanes], table[kSetLanes];
    store(high, high_bits);
    store(low, low_bits);
    store(used, used_bits);
    store(next, nexts);
    store(table, table_bits);
    store(entries_, entries.a);
    store(entries_ + 4, entries.b);
    uint32_t left_out = 0;
    for (; lanes != 0; lanes &= lanes - 1) {
      const auto i = static_cast<size_t>(std::countr_zero(lanes));
      uint64_t& entry = entries_[place_in_wide(i)];
      auto how = static_cast<uint32_t>(entry);
      uint32_t value = static_cast<uint32_t>(entry >> 32) & 0xFFFF;
      bool is_code = true;
      if ((how & LaneTables::kLongEntry) == 0) {
        const uint32_t advance = how >> 16 & 255;
        how = (how >> 6 & 31) | advance << 16 | advance << 24;
      } else {
        const uint64_t bits = uint64_t{high[i]} << 32 | low[i];
        const HuffmanCodes& codes = tables_.codes(table[i] >> kTableBit & kNumberMask);
        int symbol = 0;
        const int length = codes.symbol(bits, symbol);
        const bool dc = codes.kind() == HuffmanCodes::Kind::dc;
        const int size = dc ? symbol : symbol & 15;
        const auto run = static_cast<uint32_t>(dc ? 0 : symbol >> 4);
        is_code = length > 0;
        how = LaneTables::entry_of(static_cast<uint32_t>(length + size), run, !dc && size == 0 && run != 15);
        const auto raw = static_cast<unsigned>(size == 0 ? 0 : bits << length >> (64 - size));
        value = static_cast<uint16_t>(extend_value(raw, size));
      }
      const bool enough = used[i] + (how & 31) <= kHeldBits;
      const bool failed = !is_code || (next[i] >> kNextShift) + (how >> 16 & 255) > kBlockBytes;
      entry = how | uint64_t{value} << 32;
      if (enough && !failed) continue;
      entry = 0;
      left_out |= (failed ? 0x10001U : 1U) << i;
    }
    return left_out;
  }

  HWY_INLINE uint32_t resolve_set(Found& f, Lanes& g) {
    const V fine = _mm256_cmpeq_epi32(rare_of(f.after_first), _mm256_setzero_si256());
    const uint32_t left_out = resolve(~signs(fine) & 255, g.high, g.low, g.used, g.next, g.table, f.entries);
    f.entries = {load(entries_), load(entries_ + 4)};
    const V own_bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const V out = _mm256_cmpeq_epi32(_mm256_and_si256(all(left_out), own_bit), own_bit);
    g.used = _mm256_or_si256(g.used, _mm256_and_si256(out, all(kWaits)));
    f.live = _mm256_andnot_si256(out, f.live);
    f.how = _mm256_and_si256(lower_halves(f.entries), f.live);
    f.after_first = after_first_of(f.how, g.next);
    return left_out >> 16;
  }

  // One lookup a lane. `failed` gathers lanes that met what is not a code, or led past a block's end.
  template <int lookup>
  HWY_INLINE void look_up(const uint8_t* entries, V words, uint8_t* out, const V* end_block, Lanes* g,
                          uint32_t& failed) {
    Found first = find<lookup>(entries, end_block[0], g[0]);
    Found second = find<lookup>(entries, end_block[1], g[1]);
    const V rare = _mm256_or_si256(rare_of(first.after_first), rare_of(second.after_first));
    if (_mm256_testz_si256(rare, rare) == 0) [[unlikely]] {
      failed |= resolve_set(first, g[0]) | resolve_set(second, g[1]) << kSetLanes;
    }
    take(first, words, out, g[0]);
    take(second, words, out, g[1]);
  }

  HWY_INLINE void note(const V* bit, const Lanes* g) {
    uint32_t* const to = log_->add();
    if (to == nullptr) {
      log_ = nullptr;
      return;
    }
    HWY_UNROLL(2)
    for (int s = 0; s < kSets; ++s) {
      const V block = _mm256_add_epi32(g[s].block, all(kBlockBias));
      const V place = _mm256_or_si256(block, _mm256_srli_epi32(g[s].next, kNextShift));
      const V mcu_block = _mm256_slli_epi32(_mm256_and_si256(g[s].mcu_block, all(7)), 24);
      store(to + s * kSetLanes, bit[s]);
      store(to + kAvx2Lanes + s * kSetLanes, _mm256_or_si256(place, mcu_block));
    }
  }

  void decode_until_an_mcu_run_ends() {
    // Not by way of `this`: bytes are stored, which may be anything's.
    const auto* const entries = reinterpret_cast<const uint8_t*>(tables_.entries());
    const uint8_t* const bytes = bytes_;
    uint8_t* const out = out_;
    const V words = schedule_words_;
    V bit[kSets], end_bit[kSets], end_block[kSets];
    Lanes g[kSets];
    HWY_UNROLL(2)
    for (int s = 0; s < kSets; ++s) {
      const int lane = s * kSetLanes;
      bit[s] = load(rest_.bit + lane);
      end_bit[s] = load(rest_.end_bit + lane);
      end_block[s] = _mm256_sub_epi32(load(rest_.end_block + lane), all(kBlockBias));
      g[s].block = _mm256_sub_epi32(load(rest_.block + lane), all(kBlockBias));
      g[s].next = _mm256_slli_epi32(load(rest_.next + lane), kNextShift);
      g[s].mcu_block = _mm256_permutevar8x32_epi32(words, load(rest_.mcu_block + lane));
    }
    uint32_t failed = 0;
    uint32_t events = 0;
    do {
      if (log_ != nullptr) note(bit, g);
      fetch(bytes, bit[0], g[0]);
      fetch(bytes, bit[1], g[1]);
      static_assert(kAvx2LookupsPerFetch == 4);
      look_up<0>(entries, words, out, end_block, g, failed);
      look_up<1>(entries, words, out, end_block, g, failed);
      look_up<2>(entries, words, out, end_block, g, failed);
      look_up<3>(entries, words, out, end_block, g, failed);
      events = failed;
      HWY_UNROLL(2)
      for (int s = 0; s < kSets; ++s) {
        bit[s] = _mm256_add_epi32(bit[s], _mm256_and_si256(g[s].used, all(kWaits - 1)));
        const V more_blocks = _mm256_cmpgt_epi32(end_block[s], g[s].block);
        const V within = _mm256_cmpeq_epi32(_mm256_max_epu32(bit[s], end_bit[s]), end_bit[s]);
        events |= (~signs(_mm256_and_si256(more_blocks, within)) & 255) << (s * kSetLanes);
      }
      events &= rest_.busy;
    } while (events == 0);
    HWY_UNROLL(2)
    for (int s = 0; s < kSets; ++s) {
      const int lane = s * kSetLanes;
      store(rest_.bit + lane, bit[s]);
      store(rest_.next + lane, _mm256_srli_epi32(g[s].next, kNextShift));
      store(rest_.block + lane, _mm256_add_epi32(g[s].block, all(kBlockBias)));
      store(rest_.mcu_block + lane, _mm256_and_si256(g[s].mcu_block, all(7)));
    }
    rest_.feed_ended(feeder_, events, failed);
  }

  const LaneTables& tables_;
  const V schedule_words_;
  const uint8_t* bytes_;
  uint8_t* out_;
  LaneFeeder& feeder_;
  LaneLog* log_;
  LaneRefill rest_;
  uint64_t entries_[kSetLanes] = {};  // of resolve(): as in Wide
};

}  // namespace

void decode_avx2_lanes(const LaneTables& tables, const LaneLayout& layout, const uint8_t* bytes, int16_t* coefficients,
                       LaneFeeder& feeder, LaneLog* log) {
  Run(tables, layout, bytes, coefficients, feeder, log)();
}

}  // namespace penstock
HWY_POP_ATTRIBUTES
#endif
