// What one lane does in one step, as plain code: the reference of entropy_lanes.cpp's vector code, and what goes on
// where a lane has left off.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "runtime/decode/entropy_lanes.h"
#include "runtime/decode/lane_tables.h"

namespace penstock {

// The next 64 bits from `bit` on, left-aligned, of which at least 57 are valid; reads 8 bytes.
inline uint64_t lane_bits(const uint8_t* bytes, uint32_t bit) {
  uint64_t word;
  std::memcpy(&word, bytes + (bit >> 3), 8);
  if constexpr (std::endian::native == std::endian::little) word = __builtin_bswap64(word);
  return word << (bit & 7);
}

// `store` false: coefficients are left alone.
// One lookup: one or two coefficients, or a long code, as the vector code takes them. False: not a code, or past the
// block's end. `coefficients` as for decode_lanes().
template <bool store = true>
inline bool lane_step(const LaneTables& tables, const LaneLayout& layout, const uint8_t* bytes, int16_t* coefficients,
                      LanePlace& place) {
  const uint64_t bits = lane_bits(bytes, place.bit);
  const bool dc = place.next == 0;
  const size_t number = (dc ? layout.dc_tables : layout.ac_tables) >> place.turn & 15;
  const uint64_t entry = tables.entries()[number * LaneTables::lookup_size + (bits >> (64 - LaneTables::lookup_bits))];
  const auto how = static_cast<uint32_t>(entry);
  uint32_t takes = how & 63;
  uint32_t first_advance = how >> 11 & 31;
  uint32_t second_advance = how >> 17 & 127;
  auto values = static_cast<uint32_t>(entry >> 32);
  bool alone = (how & LaneTables::open_entry) != 0;
  if ((how & LaneTables::long_entry) != 0) {
    int symbol = 0;
    const int length = tables.codes(number).symbol(bits, symbol);
    if (length == 0) return false;
    const int size = dc ? symbol : symbol & 15;
    const auto run = static_cast<uint32_t>(dc ? 0 : symbol >> 4);
    const bool ends = !dc && size == 0 && run != 15;
    takes = static_cast<uint32_t>(length + size);
    first_advance = ends ? 1 : run + 1;
    second_advance = ends ? LaneTables::block_end : 0;
    const auto raw = static_cast<unsigned>(size == 0 ? 0 : bits << length >> (64 - size));
    values = static_cast<uint16_t>(extend_value(raw, size));
  } else if (alone) {
    const auto raw = static_cast<uint32_t>(bits >> (64 - takes)) & values;
    values = raw <= values >> 1 ? raw - values : raw;
  }
  uint32_t after = place.next + 2 * first_advance;
  const bool both = after < 128;
  if (alone || !both) values &= 0xFFFF;
  if constexpr (store) std::memcpy(reinterpret_cast<uint8_t*>(coefficients) + place.block + after - 2, &values, 4);
  if (both) {
    after += 2 * second_advance;
  } else {
    takes -= how >> 6 & 15;
  }
  place.bit += takes;
  if (after < 128) {
    place.next = after;
    return true;
  }
  place.next = 0;
  place.block += 128;
  place.turn = place.turn + 4 == 4 * layout.blocks ? 0 : place.turn + 4;
  return after == 128 || after >= 2 * LaneTables::block_end;
}

}  // namespace penstock
