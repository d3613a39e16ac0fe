// One sample's value of one field, in the room that chunk buffers and batch buffers have for it.
//
//   SampleStatus status = put_value(field, value, room);  // too long, or no UTF-8: bad
//   hash.add(record, {stored_bytes(field, room)});
//   std::string_view text = as_text(varying_value(field, room));
//
// A room is field.bytes_per_sample() bytes. A fixed-size value fills it. A `bytes` or `text` value is stored as u32
// length and then its bytes; the rest of the room is unspecified and goes nowhere: neither over a transport, nor into a
// hash, nor to a program.
// Why rooms of the longest value, and not an arena with offsets: threads fill the samples of a chunk, and chunks arrive
// in a batch buffer, in any order, and none may wait for another's length. The price is memory, which max_bytes bounds
// before anything is read; what travels is packed (runtime/protocol/chunk.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "runtime/base/error.h"
#include "runtime/base/fields.h"

namespace penstock {

// Bad: longer than max_bytes, or a text that is not UTF-8. Error(runtime): a fixed-size value of a wrong size, which is
// its source's mistake.
SampleStatus put_value(const FieldSpec& field, std::span<const std::byte> value, std::byte* room);

// The value of samples that have none: zeros; of length 0.
void put_nothing(const FieldSpec& field, std::byte* room);

// What of the room counts, the length included: what is hashed, sent and copied. A length above max_bytes (a program
// may have written over it) is taken as max_bytes.
std::span<const std::byte> stored_bytes(const FieldSpec& field, const std::byte* room);

// A bytes or text value itself.
inline std::span<const std::byte> varying_value(const FieldSpec& field, const std::byte* room) {
  return stored_bytes(field, room).subspan(sizeof(uint32_t));
}

inline std::string_view as_text(std::span<const std::byte> value) {
  return {reinterpret_cast<const char*>(value.data()), value.size()};
}

}  // namespace penstock
