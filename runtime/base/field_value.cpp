#include "runtime/base/field_value.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "runtime/base/utf8.h"

namespace penstock {

SampleStatus put_value(const FieldSpec& field, std::span<const std::byte> value, std::byte* room) {
  if (field.fixed_size()) {
    if (value.size() != field.bytes_per_sample()) {
      throw Error(ErrorKind::runtime, "the data set gave " + std::to_string(value.size()) + " bytes for field '" +
                                          field.name + "', which has " + std::to_string(field.bytes_per_sample()));
    }
    if (!value.empty()) std::memcpy(room, value.data(), value.size());
    return SampleStatus::good();
  }
  if (static_cast<int64_t>(value.size()) > field.max_bytes) {
    return SampleStatus::bad("field '" + field.name + "' has " + std::to_string(value.size()) +
                             " bytes, above limits.max_field_bytes (" + std::to_string(field.max_bytes) + ")");
  }
  if (field.kind == FieldKind::text) {
    const size_t wrong = first_not_utf8(as_text(value));
    if (wrong < value.size()) {
      return SampleStatus::bad("field '" + field.name + "' is not UTF-8 text at byte " + std::to_string(wrong));
    }
  }
  const auto length = static_cast<uint32_t>(value.size());
  std::memcpy(room, &length, sizeof length);
  if (length > 0) std::memcpy(room + sizeof length, value.data(), length);
  return SampleStatus::good();
}

void put_nothing(const FieldSpec& field, std::byte* room) {
  std::memset(room, 0, field.fixed_size() ? field.bytes_per_sample() : sizeof(uint32_t));
}

std::span<const std::byte> stored_bytes(const FieldSpec& field, const std::byte* room) {
  if (field.fixed_size()) return {room, field.bytes_per_sample()};
  uint32_t length = 0;
  std::memcpy(&length, room, sizeof length);
  return {room, sizeof length + static_cast<size_t>(std::min<int64_t>(length, field.max_bytes))};
}

}  // namespace penstock
