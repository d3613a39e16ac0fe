#include "runtime/card/entropy_tables.h"

#include <algorithm>
#include <cstring>
#include <iterator>

namespace penstock {

bool EntropyTables::make(const JpegFrame& frame) {
  turns_.clear();
  codes_.clear();
  known_.clear();
  sound_ = true;
  for (int c = 0; c < frame.components; ++c) {
    const JpegComponent& component = frame.component[static_cast<size_t>(c)];
    const uint32_t dc = number_of(frame.dc[static_cast<size_t>(component.dc_table)], HuffmanCodes::Kind::dc);
    const uint32_t ac = number_of(frame.ac[static_cast<size_t>(component.ac_table)], HuffmanCodes::Kind::ac);
    for (int down = 0; down < component.v; ++down) {
      for (int across = 0; across < component.h; ++across) {
        turns_.push_back(
            {static_cast<uint32_t>(c), static_cast<uint32_t>(across), static_cast<uint32_t>(down), dc, ac});
      }
    }
  }
  return sound_ && turns_.size() <= std::size(EntropyPart{}.turn);
}

uint32_t EntropyTables::number_of(const HuffmanSpec& spec, HuffmanCodes::Kind kind) {
  const auto found = std::find(known_.begin(), known_.end(), spec.bytes);
  if (found != known_.end()) return static_cast<uint32_t>(found - known_.begin());
  HuffmanCodes codes;
  sound_ = sound_ && codes.build(spec, kind);
  known_.push_back(spec.bytes);
  codes_.push_back(codes.table());
  return static_cast<uint32_t>(codes_.size() - 1);
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
