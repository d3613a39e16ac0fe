#include "runtime/decode/jpeg/lane_tables.h"

#include <algorithm>
#include <cstring>

namespace penstock {
namespace {

constexpr int kAllBits = LaneTables::kLookupBits;

constexpr uint32_t how_bits(uint32_t how) {
  return how & 31;
}
constexpr uint32_t how_advance(uint32_t how) {
  return how >> 16 & 255;
}
constexpr bool ends_block(uint32_t how) {
  return how >> 24 == LaneTables::kBlockEnd;
}

}  // namespace

LaneTables::LaneTables() : entries_(kLookupSize), tables_(1) {}

bool LaneTables::lay_out(const JpegFrame& frame, LaneLayout& layout) {
  static_assert(kMostTables > 1 + 6, "those of one image have room");
  ++image_;
  layout = {};
  for (int c = 0; c < frame.components; ++c) {
    const JpegComponent& component = frame.component[static_cast<size_t>(c)];
    const size_t dc = number_of(frame.dc[static_cast<size_t>(component.dc_table)], HuffmanCodes::Kind::dc);
    const size_t ac = number_of(frame.ac[static_cast<size_t>(component.ac_table)], HuffmanCodes::Kind::ac);
    if (!tables_[dc]->valid || !tables_[ac]->valid) return false;
    for (int b = 0; b < component.h * component.v; ++b) {
      layout.dc_tables |= static_cast<uint32_t>(dc) << (4 * layout.blocks);
      layout.ac_tables |= static_cast<uint32_t>(ac) << (4 * layout.blocks);
      layout.component[layout.blocks++] = static_cast<uint8_t>(c);
    }
  }
  return true;
}

size_t LaneTables::number_of(const HuffmanSpec& spec, HuffmanCodes::Kind kind) {
  const size_t size = 16 + static_cast<size_t>(spec.values);
  size_t oldest = 1;
  for (size_t n = 1; n < tables_.size(); ++n) {
    Table& known = *tables_[n];
    if (known.codes.kind() == kind && known.spec.size() == size &&
        std::memcmp(known.spec.data(), spec.bytes, size) == 0) {
      known.used = image_;
      return n;
    }
    if (known.used < tables_[oldest]->used) oldest = n;
  }
  if (tables_.size() < kMostTables) {
    oldest = tables_.size();
    tables_.push_back(std::make_unique<Table>());
  }
  Table& made = *tables_[oldest];
  made.spec.assign(spec.bytes, spec.bytes + size);
  made.used = image_;
  made.valid = made.codes.build(spec, kind);
  if (made.valid) fill_entries(oldest);
  return oldest;
}

void LaneTables::fill_entries(size_t number) {
  const HuffmanCodes& codes = tables_[number]->codes;
  const bool dc = codes.kind() == HuffmanCodes::Kind::dc;
  if (entries_.size() < (number + 1) * kLookupSize) entries_.resize((number + 1) * kLookupSize);
  uint64_t* const entries = entries_.data() + number * kLookupSize;
  std::fill_n(entries, kLookupSize, uint64_t{kLongEntry | kPairEntry | kBlockEnd << 16});
  codes.for_short_codes([&](unsigned code, int length, int symbol) {
    const int size = dc ? symbol : symbol & 15;
    const auto run = static_cast<uint32_t>(dc ? 0 : symbol >> 4);
    if (length > kAllBits || length + size > kMostBits) return;
    const bool ends = !dc && size == 0 && run != 15;
    const uint32_t how = entry_of(static_cast<uint32_t>(length + size), run, ends);
    // All inputs that begin with this code; those of one value are neighbours.
    uint64_t* const begin = entries + (size_t{code} << (kAllBits - length));
    if (length + size > kAllBits) {
      std::fill_n(begin, size_t{1} << (kAllBits - length), how | kOpenEntry | uint64_t{(1U << size) - 1} << 32);
      return;
    }
    const size_t spread = size_t{1} << (kAllBits - length - size);
    for (unsigned raw = 0; raw < (1U << size); ++raw) {
      const auto value = static_cast<uint16_t>(extend_value(raw, size));
      std::fill_n(begin + raw * spread, spread, how | uint64_t{value} << 32);
    }
  });
  if (!dc) pair_entries(entries);
}

// Where the rest of the bits is a whole coefficient too, with no zeros in between, or the end of the block.
void LaneTables::pair_entries(uint64_t* entries) {
  single_.assign(entries, entries + kLookupSize);
  for (size_t lookup = 0; lookup < kLookupSize; ++lookup) {
    const auto first = static_cast<uint32_t>(single_[lookup]);
    const uint32_t used = how_bits(first);
    if ((first & (kLongEntry | kOpenEntry)) != 0 || ends_block(first) || used >= static_cast<uint32_t>(kAllBits))
      continue;
    const uint64_t next = single_[lookup << used & (kLookupSize - 1)];
    const auto second = static_cast<uint32_t>(next);
    if ((second & (kLongEntry | kOpenEntry)) != 0 || used + how_bits(second) > static_cast<uint32_t>(kAllBits))
      continue;
    const bool ends = ends_block(second);
    if (!ends && how_advance(second) != 2) continue;
    const uint32_t advance = how_advance(first);
    const uint32_t how =
        (used + how_bits(second)) | used << 6 | advance << 16 | (ends ? kBlockEnd : advance + 2) << 24 | kPairEntry;
    entries[lookup] = how | (single_[lookup] >> 32 & 0xFFFF) << 32 | next >> 32 << 48;
  }
}

}  // namespace penstock
