// What one lane does in one step, as plain code: the reference of the vector code, and what goes on where a lane has
// left off. Thread-safety: functions of their arguments.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "runtime/decode/jpeg/entropy_lanes.h"
#include "runtime/decode/jpeg/lane_tables.h"

namespace penstock {

// The next 64 bits from `bit` on, left-aligned, of which at least 57 are valid; reads 8 bytes.
inline uint64_t lane_bits(const uint8_t* bytes, uint32_t bit) {
  uint64_t word;
  std::memcpy(&word, bytes + (bit >> 3), 8);
  if constexpr (std::endian::native == std::endian::little) word = __builtin_bswap64(word);
  return word << (bit & 7);
}

// Two neighbouring coefficients, the first in the lower half.
inline void store_two(uint32_t values, uint8_t* to) {
  if constexpr (std::endian::native == std::endian::big) values = std::rotl(values, 16);
  std::memcpy(to, &values, 4);
}

// `store` false: coefficients are left alone.
// One lookup: one or two coefficients, or a long code, as the vector code takes them. False: not a code, or past the
// block's end. `coefficients` as for decode_lanes().
template <bool store = true>
inline bool lane_step(const LaneTables& tables, const LaneLayout& layout, const uint8_t* bytes, int16_t* coefficients,
                      LanePlace& place) {
  const uint64_t bits = lane_bits(bytes, place.bit);
  const bool dc = place.next == 0;
  const size_t number = (dc ? layout.dc_tables : layout.ac_tables) >> place.mcu_block & 15;
  const uint64_t entry = tables.entries()[number * LaneTables::kLookupSize + (bits >> (64 - LaneTables::kLookupBits))];
  auto how = static_cast<uint32_t>(entry);
  auto values = static_cast<uint32_t>(entry >> 32);
  const bool open = (how & LaneTables::kOpenEntry) != 0;
  if ((how & LaneTables::kLongEntry) != 0) {
    int symbol = 0;
    const int length = tables.codes(number).symbol(bits, symbol);
    if (length == 0) return false;
    const int size = dc ? symbol : symbol & 15;
    const auto run = static_cast<uint32_t>(dc ? 0 : symbol >> 4);
    const bool ends = !dc && size == 0 && run != 15;
    how = LaneTables::entry_of(static_cast<uint32_t>(length + size), run, ends);
    const auto raw = static_cast<unsigned>(size == 0 ? 0 : bits << length >> (64 - size));
    values = static_cast<uint16_t>(extend_value(raw, size));
  } else if (open) {
    const auto raw = static_cast<uint32_t>(bits >> (64 - (how & 31))) & values;
    values = raw <= values >> 1 ? raw - values : raw;
  }
  const uint32_t after_first = place.next + (how >> 16 & 255);
  const bool both = after_first < 128;
  if (open || !both) values &= 0xFFFF;
  if constexpr (store) {
    store_two(values, reinterpret_cast<uint8_t*>(coefficients) + place.block + after_first - 2);
  }
  place.bit += (both ? how : how >> 6) & 31;
  const uint32_t after = place.next + (how >> 24);
  if (after < 128) {
    place.next = after;
    return true;
  }
  place.next = 0;
  place.block += 128;
  place.mcu_block = place.mcu_block + 4 == 4 * layout.blocks ? 0 : place.mcu_block + 4;
  return after_first <= 128;
}

}  // namespace penstock
