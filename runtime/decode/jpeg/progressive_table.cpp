#include "runtime/decode/jpeg/progressive_table.h"

#include <algorithm>

namespace penstock {

bool ProgressiveTable::build(const HuffmanSpec& spec, HuffmanCodes::Kind kind, int low_bit, bool refine) {
  if (!codes.build(spec, kind)) return false;
  // A DC value's bits are shifted when differences have been summed.
  low = kind == HuffmanCodes::Kind::dc ? 0 : low_bit;
  refines = refine;
  entries.fill(0);
  codes.for_short_codes([&](unsigned code, int length, int symbol) {
    uint32_t entry = 0;
    int size = 0;
    if (!entry_of(length, symbol, entry, size) || length + size > kLookupBits) return;
    const size_t spread = size_t{1} << (kLookupBits - length - size);
    auto at = entries.begin() + static_cast<std::ptrdiff_t>(code << (kLookupBits - length));
    for (unsigned raw = 0; raw < (1U << size); ++raw, at += static_cast<std::ptrdiff_t>(spread)) {
      const auto value = static_cast<uint32_t>(extend_value(raw, size)) << low << 16;
      std::fill_n(at, spread, entry | value);
    }
  });
  return true;
}

// All but the value.
bool ProgressiveTable::entry_of(int length, int symbol, uint32_t& entry, int& size) const {
  const auto run = static_cast<unsigned>(codes.kind() == HuffmanCodes::Kind::dc ? 0 : symbol >> 4);
  size = codes.kind() == HuffmanCodes::Kind::dc ? symbol : symbol & 15;
  if (size > (refines ? 1 : 15 - low)) return false;
  const bool end = codes.kind() == HuffmanCodes::Kind::ac && size == 0 && run != 15;
  const auto taken = static_cast<uint32_t>(length + size);
  entry = refines ? run | taken << 8 | (end ? kEnds : 0) : taken | (end ? kEndOfBlock + run : run) << 8;
  return true;
}

uint32_t ProgressiveTable::slow_entry(uint64_t bits) const {
  int symbol = 0;
  const int length = codes.symbol(bits, symbol);
  uint32_t entry = 0;
  int size = 0;
  if (length == 0 || !entry_of(length, symbol, entry, size)) return 0;
  if (size == 0) return entry;
  const auto raw = static_cast<unsigned>(bits << length >> (64 - size));
  return entry | static_cast<uint32_t>(extend_value(raw, size)) << low << 16;
}

}  // namespace penstock
