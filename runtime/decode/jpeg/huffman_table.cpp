#include "runtime/decode/jpeg/huffman_table.h"

#include <algorithm>

namespace penstock {
namespace {

constexpr unsigned bits_of(uint32_t entry) {
  return entry & 63;
}
constexpr unsigned advance_of(uint32_t entry) {
  return entry >> 8 & 255;
}

}  // namespace

bool HuffmanCodes::build(const HuffmanSpec& spec, Kind kind) {
  kind_ = kind;
  std::fill(std::begin(table_.values), std::end(table_.values), 0);
  std::copy_n(spec.bytes + 16, spec.values, table_.values);
  std::fill(std::begin(table_.shorts), std::end(table_.shorts), 0);
  std::fill(std::begin(table_.max_code), std::end(table_.max_code), -1);
  std::fill(std::begin(table_.offset), std::end(table_.offset), 0);
  counts_.fill(0);
  int32_t code = 0;
  int index = 0;
  for (int length = 1; length <= 16; ++length) {
    const int count = spec.bytes[length - 1];
    table_.offset[length] = index - code;
    for (int i = 0; i < count; ++i, ++code, ++index) {
      const int symbol = table_.values[index];
      if (kind == Kind::dc && symbol > 15) return false;
      if (length > kLookupBits || code >= (1 << length)) continue;
      std::fill_n(table_.shorts + (code << (kLookupBits - length)), size_t{1} << (kLookupBits - length),
                  static_cast<uint16_t>(length << 8 | symbol));
    }
    // No code may be all ones; libjpeg-turbo looks only where there are codes.
    if (count > 0 && code >= (1 << length)) return false;
    if (count > 0) table_.max_code[length] = code - 1;
    counts_[static_cast<size_t>(length)] = static_cast<uint16_t>(count);
    code <<= 1;
  }
  return true;
}

bool HuffmanTable::build(const HuffmanSpec& spec, Kind kind) {
  constexpr size_t all = kLookupSize;
  if (!codes.build(spec, kind)) return false;
  single.fill(0);
  codes.for_short_codes([&](unsigned code, int length, int symbol) {
    // All inputs that begin with this code; those of one value are neighbours.
    const int size = symbol & 15;
    const int run = kind == Kind::ac ? symbol >> 4 : 0;
    if (length + size > kLookupBits) return;  // stays 0
    unsigned advance = static_cast<unsigned>(run) + 1;
    if (kind == Kind::ac && size == 0) advance = run == 15 ? 16 : kEndAdvance;
    const size_t spread = size_t{1} << (kLookupBits - length - size);
    size_t at = static_cast<size_t>(code) << (kLookupBits - length);
    for (unsigned raw = 0; raw < (1U << size); ++raw, at += spread) {
      const int value = extend_value(raw, size);
      const uint32_t entry = static_cast<uint32_t>(length + size) | advance << 8 |
                             static_cast<uint32_t>(static_cast<uint16_t>(value)) << 16;
      std::fill_n(single.begin() + static_cast<std::ptrdiff_t>(at), spread, entry);
    }
  });
  if (kind == Kind::dc) return true;
  for (size_t i = 0; i < all; ++i) {
    const uint32_t first = single[i];
    if (first == 0) {
      pairs[i] = 0;
      continue;
    }
    const unsigned used = bits_of(first);
    const uint64_t value = first >> 16;
    uint64_t entry = used | uint64_t{used} << 24 | uint64_t{advance_of(first)} << 8 |
                     uint64_t{advance_of(first)} << 16 | value << 32 | value << 48;
    if (advance_of(first) != kEndAdvance) {
      const uint32_t second = single[(i << used) & (all - 1)];
      if (second != 0 && used + bits_of(second) <= kLookupBits) {
        entry = (used + bits_of(second)) | uint64_t{used} << 24 | uint64_t{advance_of(first)} << 8 |
                uint64_t{advance_of(first) + advance_of(second)} << 16 | value << 32 | uint64_t{second >> 16} << 48;
      }
    }
    pairs[i] = entry;
  }
  return true;
}

}  // namespace penstock
