#include "runtime/gpu/entropy_tables.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "runtime/base/hash.h"

namespace penstock {

bool EntropyTables::make(const JpegFrame& frame) {
  blocks_.clear();
  codes_.clear();
  sound_ = true;
  ++file_;
  for (int c = 0; c < frame.components; ++c) {
    const JpegComponent& component = frame.component[static_cast<size_t>(c)];
    const size_t dc = number_of(frame.dc[static_cast<size_t>(component.dc_table)], HuffmanCodes::Kind::dc);
    const size_t ac = number_of(frame.ac[static_cast<size_t>(component.ac_table)], HuffmanCodes::Kind::ac);
    for (int down = 0; down < component.v; ++down) {
      for (int across = 0; across < component.h; ++across) {
        blocks_.push_back(
            {static_cast<uint32_t>(c), static_cast<uint32_t>(across), static_cast<uint32_t>(down), dc, ac});
      }
    }
  }
  return sound_ && blocks_.size() <= std::size(EntropyPart{}.mcu_block);
}

size_t EntropyTables::number_of(const HuffmanSpec& spec, HuffmanCodes::Kind kind) {
  const Kept& found = kept(spec, kind);
  sound_ = sound_ && found.valid;
  const auto at = std::find(codes_.begin(), codes_.end(), &found);
  const auto number = static_cast<size_t>(at - codes_.begin());
  if (at == codes_.end()) codes_.push_back(&found);
  return number;
}

const EntropyTables::Kept& EntropyTables::kept(const HuffmanSpec& spec, HuffmanCodes::Kind kind) {
  const size_t size = 16 + static_cast<size_t>(spec.values);
  Kept* oldest = nullptr;
  for (const auto& entry : kept_) {
    if (entry->codes.kind() == kind && entry->spec.size() == size &&
        std::memcmp(entry->spec.data(), spec.bytes, size) == 0) {
      entry->used = file_;
      return *entry;
    }
    if (oldest == nullptr || entry->used < oldest->used) oldest = entry.get();
  }
  // There are more than a file has, so none of this file's own is the oldest.
  if (kept_.size() < kMostKept) oldest = kept_.emplace_back(std::make_unique<Kept>()).get();
  oldest->spec.assign(spec.bytes, spec.bytes + size);
  oldest->key = hash128({reinterpret_cast<const char*>(spec.bytes), size}).low;
  oldest->valid = oldest->codes.build(spec, kind);
  oldest->used = file_;
  return *oldest;
}

void EntropyTables::write_mcu_blocks(std::span<const uint64_t> table_at, McuBlock* mcu_blocks) const {
  for (const Block& block : blocks_) {
    *mcu_blocks++ = {block.component, block.across, block.down, table_at[block.dc], table_at[block.ac]};
  }
}

bool find_marker(EncodedView file, size_t from, size_t& marker) {
  const auto* const bytes = reinterpret_cast<const uint8_t*>(file.data());
  for (size_t at = from; at + 1 < file.size();) {
    const auto* const found = static_cast<const uint8_t*>(std::memchr(bytes + at, 0xFF, file.size() - 1 - at));
    if (found == nullptr) return false;
    marker = static_cast<size_t>(found - bytes);
    if (found[1] == 0xFF) return false;  // a fill byte: libjpeg-turbo reads on
    if (found[1] != 0) return true;
    at = marker + 2;
  }
  return false;
}

}  // namespace penstock
