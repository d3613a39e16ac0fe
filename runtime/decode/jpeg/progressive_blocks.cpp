#include "runtime/decode/jpeg/progressive_blocks.h"

// Scalar code, but the scalar instructions that make it fast come with AVX2: shifts, counts and deposits of bits.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3 | HWY_AVX3_DL)

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/decode/jpeg/progressive_blocks.cpp"
#include <hwy/foreach_target.h>  // compiles the rest of this file once per target
#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "runtime/decode/jpeg/coefficient_tiles.h"
#include "runtime/decode/jpeg/zigzag.h"

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",lzcnt,popcnt")  // every CPU with AVX2 has them
#else
HWY_BEFORE_NAMESPACE();
#endif
namespace penstock::progressive_vectors {
namespace HWY_NAMESPACE {

constexpr int kShift = 64 - ProgressiveTable::kLookupBits;
constexpr unsigned kEndOfBlock = ProgressiveTable::kEndOfBlock;
constexpr uint64_t kTopBit = uint64_t{1} << 63;

// Where coefficient k lies in a tile. Ends of a block, which bring the value 0, are or-ed to the DC's place; runs that
// lead past the 64th are found out afterwards.
constexpr std::array<uint8_t, 256> make_places() {
  std::array<uint8_t, 256> places{};
  for (size_t k = 0; k < 64; ++k) places[k] = static_cast<uint8_t>(tile_offset(kZigzagOrder[k]));
  return places;
}
constexpr auto kPlaces = make_places();

HWY_INLINE unsigned leading_zeros(uint64_t n) {
  return static_cast<unsigned>(__builtin_clzll(n));
}

// A stream's state in registers.
struct Bits {
  uint64_t bits;
  const uint8_t* next;
  int count;
  const uint8_t* const limit;

  HWY_INLINE explicit Bits(const ProgressiveStream& s) : bits(s.bits), next(s.next), count(s.count), limit(s.end + 8) {}
  HWY_INLINE void save(ProgressiveStream& s) const {
    s.bits = bits;
    s.next = next;
    s.count = count;
  }
  // At least 56 bits. Beyond the segment's end these are other bytes; whoever uses them is found out afterwards.
  HWY_INLINE void refill() {
    uint64_t word;
    std::memcpy(&word, next, 8);
    if constexpr (std::endian::native == std::endian::little) word = __builtin_bswap64(word);
    bits |= word >> count;
    next += (63 - count) >> 3;
    count |= 56;
  }
  // The lowest six bits of `n`: entries of tables may come as they are.
  HWY_INLINE void take(unsigned n) {
    bits <<= n & 63;
    count -= static_cast<int>(n & 63);
  }
  // n may be 0; it is 16 at most.
  HWY_INLINE uint32_t value(unsigned n) {
    const auto v = static_cast<uint32_t>((bits >> 1) >> (63 - n));
    take(n);
    return v;
  }
  HWY_INLINE bool one() {
    const bool v = (bits & kTopBit) != 0;
    take(1);
    return v;
  }
  HWY_INLINE bool overrun() const { return next > limit; }
};

HWY_INLINE int16_t value_of(uint32_t entry) {
  return static_cast<int16_t>(entry >> 16);
}
HWY_INLINE unsigned zeros_of(uint32_t entry) {
  return entry >> 8 & 255;
}

// The number of blocks in a run that ends here, this one included.
HWY_INLINE uint32_t read_run(Bits& bits, uint32_t entry) {
  const unsigned r = zeros_of(entry) - kEndOfBlock;
  return (1U << r) + bits.value(r);
}

// What is not in the table, its bits taken, with as many as before at hand again. 0: not supported.
HWY_INLINE uint32_t TakeSlowly(Bits& bits, const ProgressiveTable& table) {
  const uint32_t entry = table.slow_entry(bits.bits);
  bits.take(entry);
  bits.refill();
  return entry & ~63U;
}

template <bool store, bool mask>
HWY_INLINE bool FirstBlocks(Bits& bits, const ProgressiveBand& band, uint32_t& run, const ProgressiveMcuRun& blocks,
                            size_t begin, size_t end) {
  const ProgressiveTable& table = *band.table;
  const uint32_t* const entries = table.entries.data();
  const unsigned first = band.first;
  const unsigned last = band.last;
  for (size_t b = begin;; ++b) {
    const size_t skipped = std::min<size_t>(run, end - b);
    run -= static_cast<uint32_t>(skipped);
    b += skipped;
    if (b == end) return true;
    int16_t* const block = store ? blocks.tiles + tile_block_begin(b - blocks.first_wanted) : nullptr;
    uint64_t present = 0;
    unsigned k = first;
    uint32_t entry;
    // True: the block goes on.
    const auto step = [&]() __attribute__((always_inline)) {
      entry = entries[bits.bits >> kShift];
      if (entry == 0) [[unlikely]] {
        entry = TakeSlowly(bits, table);
        if (entry == 0) return false;
      }
      bits.take(entry);
      k += zeros_of(entry);
      if constexpr (store) block[kPlaces[k]] = static_cast<int16_t>(block[kPlaces[k]] | value_of(entry));
      if constexpr (mask) present |= (entry >> 16 != 0 ? kTopBit : 0) >> (k & 63);
      return ++k <= last;
    };
    do {
      bits.refill();
    } while (step() && step() && step());
    if (entry == 0) [[unlikely]]
      return false;
    if constexpr (mask) blocks.masks[b] |= present;
    if (k > last + 1) {
      if (k <= kEndOfBlock) return false;
      run = read_run(bits, entry) - 1;
    }
    if (bits.overrun()) return false;
  }
}

// The zero, of those in `zeros`, before which `passed` others stand; 0: there is none.
HWY_INLINE uint64_t NthZero(uint64_t zeros, unsigned passed) {
  for (; passed > 0 && zeros != 0; --passed) zeros ^= kTopBit >> leading_zeros(zeros);
  return zeros == 0 ? 0 : kTopBit >> leading_zeros(zeros);
}

// Those places of `mask` whose bit in `bits` is set; the last place's is the lowest.
template <bool deposits>
HWY_INLINE uint64_t Deposit(uint64_t bits, uint64_t mask) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
  if constexpr (deposits) return _pdep_u64(bits, mask);
#endif
  uint64_t set = 0;
  for (; mask != 0; mask &= mask - 1, bits >>= 1) set |= (bits & 1) != 0 ? mask & (~mask + 1) : 0;
  return set;
}

// `count` correction bits behind those gathered; after a refill.
HWY_INLINE void GatherCorrections(Bits& bits, unsigned count, uint64_t& corrections) {
  for (; count > 32; --count) [[unlikely]] {  // more than may be at hand
      corrections = corrections << 1 | (bits.one() ? 1 : 0);
      bits.refill();
    }
  corrections = corrections << count | bits.bits >> 1 >> (63 - count);
  bits.take(count);
}

template <bool store, bool deposits>
HWY_INLINE bool RefineBlocks(Bits& bits, const ProgressiveBand& band, uint32_t& run, const ProgressiveMcuRun& blocks,
                             size_t begin, size_t end) {
  const ProgressiveTable& table = *band.table;
  const uint32_t* const entries = table.entries.data();
  const uint64_t all = (~uint64_t{0} >> band.first) & ~((kTopBit >> band.last) - 1);
  for (size_t b = begin; b < end; ++b) {
    int16_t* const block = store ? blocks.tiles + tile_block_begin(b - blocks.first_wanted) : nullptr;
    const uint64_t present = blocks.masks[b] & all;
    uint64_t rest = all;       // of the band, what is still to come
    uint64_t corrections = 0;  // a bit for each of `present`, in order
    bits.refill();
    if (run == 0) {
      const uint64_t zeros = all & ~present;
      uint64_t rank = (uint64_t{1} << __builtin_popcountll(zeros)) >> 1;  // of the next zero, as deposits count
      uint64_t fresh = 0;
      unsigned k = band.first;
      do {
        uint32_t entry = entries[bits.bits >> kShift];
        if (entry == 0) [[unlikely]] {
          entry = table.slow_entry(bits.bits);
          if (entry == 0) return false;
        }
        const unsigned length = entry >> 8 & 63;
        if ((entry & ProgressiveTable::kEnds) != 0) {
          bits.take(length);
          run = (1U << (entry & 15)) + bits.value(entry & 15);
          bits.refill();
          break;
        }
        uint64_t place;
        if constexpr (deposits) {
          rank >>= entry & 63;
          place = Deposit<true>(rank, zeros);
          rank >>= 1;
        } else {
          place = NthZero(rest & zeros, entry & 63);
        }
        if (place == 0) [[unlikely]]
          return false;
        const unsigned target = leading_zeros(place);
        const unsigned ahead = k + (entry & 63);
        const unsigned count = target - ahead;             // of `present`, before the place
        const unsigned taken = target + (length - ahead);  // the next lookup waits for this
        if (count > 32) [[unlikely]] {
          bits.take(length);
          bits.refill();
          GatherCorrections(bits, count, corrections);
        } else {
          corrections = corrections << count | bits.bits << length >> 1 >> (63 - count);
          bits.take(taken);
        }
        if constexpr (store) block[kPlaces[target]] = value_of(entry);
        fresh |= entry >> 16 != 0 ? place : 0;
        rest = place - 1;
        k = target + 1;
        bits.refill();
      } while (k <= band.last);
      rest &= all;
      blocks.masks[b] |= fresh;
    }
    if (run > 0) {
      --run;
      GatherCorrections(bits, static_cast<unsigned>(__builtin_popcountll(rest & present)), corrections);
    }
    if constexpr (store) {
      for (uint64_t hits = Deposit<deposits>(corrections, present); hits != 0;) {
        const unsigned k = leading_zeros(hits);
        hits ^= kTopBit >> k;
        int16_t& value = block[kPlaces[k]];
        value = static_cast<int16_t>(value + ((value >> 15 | 1) << band.low));
      }
    }
    if (bits.overrun()) return false;
  }
  return true;
}

// The three parts of a run of MCUs: before, within and after the wanted blocks.
struct Parts {
  size_t wanted, after;

  explicit Parts(const ProgressiveMcuRun& b)
      : wanted(b.tiles == nullptr ? b.end : std::clamp(b.first_wanted, b.begin, b.end)),
        after(b.tiles == nullptr ? b.end : std::clamp(b.end_wanted, wanted, b.end)) {}
};

bool ReadAcFirst(ProgressiveStream& stream, const ProgressiveBand& band, const ProgressiveMcuRun& b) {
  Bits bits(stream);
  uint32_t run = stream.end_of_band_run;
  const Parts parts(b);
  const bool good = band.refined ? FirstBlocks<false, true>(bits, band, run, b, b.begin, parts.wanted) &&
                                       FirstBlocks<true, true>(bits, band, run, b, parts.wanted, parts.after) &&
                                       FirstBlocks<false, true>(bits, band, run, b, parts.after, b.end)
                                 : FirstBlocks<false, false>(bits, band, run, b, b.begin, parts.wanted) &&
                                       FirstBlocks<true, false>(bits, band, run, b, parts.wanted, parts.after) &&
                                       FirstBlocks<false, false>(bits, band, run, b, parts.after, b.end);
  bits.save(stream);
  stream.end_of_band_run = run;
  return good;
}

template <bool deposits>
HWY_INLINE bool Refine(ProgressiveStream& stream, const ProgressiveBand& band, const ProgressiveMcuRun& b) {
  Bits bits(stream);
  uint32_t run = stream.end_of_band_run;
  const Parts parts(b);
  const bool good = RefineBlocks<false, deposits>(bits, band, run, b, b.begin, parts.wanted) &&
                    RefineBlocks<true, deposits>(bits, band, run, b, parts.wanted, parts.after) &&
                    RefineBlocks<false, deposits>(bits, band, run, b, parts.after, b.end);
  bits.save(stream);
  stream.end_of_band_run = run;
  return good;
}

bool ReadAcRefinement(ProgressiveStream& stream, const ProgressiveBand& band, const ProgressiveMcuRun& b) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
  // AMD's first CPUs that have pdep take hundreds of cycles for it.
  static const bool slow = __builtin_cpu_is("amdfam17h") != 0;
  if (!slow) return Refine<true>(stream, band, b);
#endif
  return Refine<false>(stream, band, b);
}

bool ReadDcFirst(ProgressiveStream& stream, const ProgressiveDcBlock* blocks, size_t count, int low, size_t begin,
                 size_t end) {
  Bits bits(stream);
  const uint32_t half = 0x8000U >> low;  // values that fit, shifted, into 16 bits
  uint32_t beyond = 0;
  for (size_t mcu = begin; mcu < end; ++mcu) {
    for (size_t i = 0; i < count; ++i) {
      const ProgressiveDcBlock& block = blocks[i];
      bits.refill();
      uint32_t entry = block.table->entries[bits.bits >> kShift];
      if (entry == 0) [[unlikely]] {
        entry = block.table->slow_entry(bits.bits);
        if (entry == 0) return false;
      }
      bits.take(entry);
      const int32_t value = *block.prediction + value_of(entry);
      *block.prediction = value;
      beyond |= (static_cast<uint32_t>(value) + half) & ~(2 * half - 1);
      if (block.tiles == nullptr) continue;
      const size_t at = mcu * block.step + block.across;
      if (at < block.first_wanted || at >= block.end_wanted) continue;
      block.tiles[tile_block_begin(at - block.first_wanted)] =
          static_cast<int16_t>(static_cast<uint32_t>(value) << low);
    }
    if (beyond != 0 || bits.overrun()) return false;
  }
  bits.save(stream);
  return true;
}

bool ReadDcRefinement(ProgressiveStream& stream, const ProgressiveDcBlock* blocks, size_t count, int low, size_t begin,
                      size_t end) {
  Bits bits(stream);
  for (size_t mcu = begin; mcu < end; ++mcu) {
    bits.refill();
    for (size_t i = 0; i < count; ++i) {
      const ProgressiveDcBlock& block = blocks[i];
      const auto bit = static_cast<int16_t>((bits.bits >> 63) << low);
      bits.take(1);
      if (block.tiles == nullptr) continue;
      const size_t at = mcu * block.step + block.across;
      if (at < block.first_wanted || at >= block.end_wanted) continue;
      int16_t& value = block.tiles[tile_block_begin(at - block.first_wanted)];
      value = static_cast<int16_t>(value | bit);
    }
    if (bits.overrun()) return false;
  }
  bits.save(stream);
  return true;
}

}  // namespace HWY_NAMESPACE
}  // namespace penstock::progressive_vectors
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace penstock {
namespace progressive_vectors {
HWY_EXPORT(ReadAcFirst);
HWY_EXPORT(ReadAcRefinement);
HWY_EXPORT(ReadDcFirst);
HWY_EXPORT(ReadDcRefinement);
}  // namespace progressive_vectors
using namespace progressive_vectors;  // for the dispatch macros alone

bool read_ac_first(ProgressiveStream& stream, const ProgressiveBand& band, const ProgressiveMcuRun& blocks) {
  return HWY_DYNAMIC_DISPATCH(ReadAcFirst)(stream, band, blocks);
}

bool read_ac_refinement(ProgressiveStream& stream, const ProgressiveBand& band, const ProgressiveMcuRun& blocks) {
  return HWY_DYNAMIC_DISPATCH(ReadAcRefinement)(stream, band, blocks);
}

bool read_dc_first(ProgressiveStream& stream, const ProgressiveDcBlock* blocks, size_t count, int low, size_t begin,
                   size_t end) {
  return HWY_DYNAMIC_DISPATCH(ReadDcFirst)(stream, blocks, count, low, begin, end);
}

bool read_dc_refinement(ProgressiveStream& stream, const ProgressiveDcBlock* blocks, size_t count, int low,
                        size_t begin, size_t end) {
  return HWY_DYNAMIC_DISPATCH(ReadDcRefinement)(stream, blocks, count, low, begin, end);
}

}  // namespace penstock
#endif
