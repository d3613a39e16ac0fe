// Writing and reading of message members, shared by the two protocols: each message is the list of its members, so what
// is written and what is read cannot drift apart.
#pragma once

#include <cstring>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include "runtime/balancer/balancer.h"
#include "runtime/base/fields.h"
#include "runtime/base/memory_range.h"
#include "runtime/base/sample.h"
#include "runtime/base/wire.h"

namespace penstock::codec {

inline void put(WireWriter& out, bool v) {
  out.u8(v ? 1 : 0);
}
inline void put(WireWriter& out, int32_t v) {
  out.i32(v);
}
inline void put(WireWriter& out, int64_t v) {
  out.i64(v);
}
inline void put(WireWriter& out, uint64_t v) {
  out.u64(v);
}
inline void put(WireWriter& out, const std::string& v) {
  out.text(v);
}
inline void put(WireWriter& out, const LeaseKey& v) {
  out.u64(v.lease_stream);
  out.i64(v.step);
  out.i32(v.chunk);
  out.u32(v.generation);
}
inline void put(WireWriter& out, const PlannedSample& v) {
  out.i64(v.position);
  out.i64(v.index);
  out.u16(v.occurrence);
  out.u8(v.valid ? 1 : 0);
}
inline void put(WireWriter& out, const MemoryRange& v) {
  out.u64(v.at);
  out.u64(v.bytes);
}
inline void put(WireWriter& out, const FieldSpec& v) {
  out.text(v.name);
  out.u8(static_cast<uint8_t>(v.kind));
  out.u8(static_cast<uint8_t>(v.dtype));
  out.u32(static_cast<uint32_t>(v.shape.size()));
  for (const int64_t extent : v.shape) out.i64(extent);
  out.i64(v.max_bytes);
}
template <class T>
void put(WireWriter& out, const std::vector<T>& v) {
  out.u32(static_cast<uint32_t>(v.size()));
  for (const T& item : v) put(out, item);
}

// Orders of millions of indices travel so.
inline void put(WireWriter& out, const std::vector<int64_t>& v) {
  out.u64(v.size());
  out.raw(v.data(), v.size() * sizeof(int64_t));
}

inline void get(WireReader& in, bool& v) {
  v = in.u8() != 0;
}
inline void get(WireReader& in, int32_t& v) {
  v = in.i32();
}
inline void get(WireReader& in, int64_t& v) {
  v = in.i64();
}
inline void get(WireReader& in, uint64_t& v) {
  v = in.u64();
}
inline void get(WireReader& in, std::string& v) {
  v = in.text();
}
inline void get(WireReader& in, LeaseKey& v) {
  v.lease_stream = in.u64();
  v.step = in.i64();
  v.chunk = in.i32();
  v.generation = in.u32();
}
inline void get(WireReader& in, PlannedSample& v) {
  v.position = in.i64();
  v.index = in.i64();
  v.occurrence = in.u16();
  v.valid = in.u8() != 0;
}
inline void get(WireReader& in, MemoryRange& v) {
  v.at = in.u64();
  v.bytes = in.u64();
}
inline void get(WireReader& in, FieldSpec& v) {
  v.name = in.text();
  v.kind = static_cast<FieldKind>(in.u8());
  v.dtype = static_cast<DType>(in.u8());
  const uint32_t extents = in.u32();
  v.shape.clear();
  for (uint32_t i = 0; i < extents; ++i) v.shape.push_back(in.i64());  // grown one by one, as below
  v.max_bytes = in.i64();
}
template <class T>
void get(WireReader& in, std::vector<T>& v) {
  const uint32_t count = in.u32();
  v.clear();
  // Grown item by item: a wrong count meets the end of the message before it meets the end of the memory.
  for (uint32_t i = 0; i < count; ++i) {
    v.emplace_back();
    get(in, v.back());
  }
}

inline void get(WireReader& in, std::vector<int64_t>& v) {
  const uint64_t count = in.u64();
  // A wrong count meets the end of the message before memory is taken.
  const auto part = in.raw(count > in.left() / sizeof(int64_t) ? in.left() + 1 : count * sizeof(int64_t));
  v.resize(count);
  if (count > 0) std::memcpy(v.data(), part.data(), part.size());
}

// `members` gives the tuple of references to a message's members, which it can also fill: here they are only read.
template <class AnyMessage, class Members>
std::vector<std::byte> encode(const AnyMessage& message, Members members) {
  WireWriter out;
  out.u8(static_cast<uint8_t>(message.index()));
  std::visit([&](auto& m) { std::apply([&](auto&... member) { (put(out, member), ...); }, members(m)); },
             const_cast<AnyMessage&>(message));
  return out.take();
}

template <class Kind, class Members>
Kind decode_kind(WireReader& in, Members members) {
  Kind message;
  std::apply([&](auto&... member) { (get(in, member), ...); }, members(message));
  in.end();
  return message;
}

// `kinds` is a null pointer to the variant that AnyMessage is derived from.
template <class AnyMessage, class... Kinds, class Members>
AnyMessage decode(const std::variant<Kinds...>* /*kinds*/, size_t kind, WireReader& in, Members members) {
  AnyMessage message;
  size_t number = 0;
  const bool known = ((number++ == kind && (message = decode_kind<Kinds>(in, members), true)) || ...);
  if (known) return message;
  throw Error(ErrorKind::peer_lost, "a message of unknown kind " + std::to_string(kind),
              "all ranks must run the same version of penstock");
}

}  // namespace penstock::codec
