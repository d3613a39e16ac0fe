// Values as bytes on the wire, and back: numbers, texts, optional values, lists, and plain structs of these, member by
// member (members.h). What is written and what is read cannot drift apart, as neither has a list of its own.
//
//   WireWriter out;                       WireReader in(bytes, "what it is, for messages");
//   codec::put(out, header);              codec::get(in, header);
//
// A message is one kind of a std::variant: encode() writes its number first, and decode() reads it.
// Untrusted bytes: lists grow by what is really there, so a count alone takes no memory. Numbers are as they come,
//   those of enumerations too. Failure: WireReader's Error(peer_lost). Thread-safety: free functions.
#pragma once

#include <cstring>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/base/members.h"
#include "runtime/base/wire.h"

namespace penstock::codec {

template <class T>
constexpr bool is_list = false;
template <class T>
constexpr bool is_list<std::vector<T>> = true;
template <class T>
constexpr bool is_optional = false;
template <class T>
constexpr bool is_optional<std::optional<T>> = true;
template <class T>
constexpr bool is_number = std::is_arithmetic_v<T> || std::is_enum_v<T>;

template <class T>
void put(WireWriter& out, const T& v) {
  if constexpr (is_number<T>) {
    out.raw(&v, sizeof v);
  } else if constexpr (std::is_same_v<T, std::string>) {
    out.text(v);
  } else if constexpr (is_optional<T>) {
    put(out, v.has_value());
    if (v) put(out, *v);
  } else if constexpr (is_list<T>) {
    out.u32(static_cast<uint32_t>(v.size()));
    if constexpr (is_number<typename T::value_type>) {
      out.raw(v.data(), v.size() * sizeof(v[0]));
    } else {
      for (const auto& item : v) put(out, item);
    }
  } else {
    std::apply([&](const auto&... member) { (put(out, member), ...); }, members_of(v));
  }
}

template <class T>
void get(WireReader& in, T& v) {
  if constexpr (std::is_same_v<T, bool>) {
    v = in.u8() != 0;
  } else if constexpr (is_number<T>) {
    v = in.value<T>();
  } else if constexpr (std::is_same_v<T, std::string>) {
    v = in.text();
  } else if constexpr (is_optional<T>) {
    v.reset();
    if (in.u8() != 0) get(in, v.emplace());
  } else if constexpr (is_list<T>) {
    const size_t count = in.u32();
    v.clear();
    if constexpr (is_number<typename T::value_type>) {
      const auto part = in.raw(count * sizeof(v[0]));  // or refused
      v.resize(count);
      if (count > 0) std::memcpy(v.data(), part.data(), part.size());
    } else {
      for (size_t i = 0; i < count; ++i) get(in, v.emplace_back());
    }
  } else {
    std::apply([&](auto&... member) { (get(in, member), ...); }, members_of(v));
  }
}

// `AnyMessage` derives from a std::variant of structs.
template <class AnyMessage>
std::vector<std::byte> encode(const AnyMessage& message) {
  WireWriter out;
  out.u8(static_cast<uint8_t>(message.index()));
  std::visit([&](const auto& kind) { put(out, kind); }, message);
  return out.take();
}

template <class AnyMessage>
AnyMessage decode(WireReader& in) {
  using Kinds = typename AnyMessage::variant;
  const size_t number = in.u8();
  AnyMessage message;
  const auto read = [&]<size_t i>(std::integral_constant<size_t, i>) {
    get(in, message.template emplace<i>());
    in.end();
    return true;
  };
  const bool known = [&]<size_t... i>(std::index_sequence<i...>) {
    return ((number == i && read(std::integral_constant<size_t, i>())) || ...);
  }
  (std::make_index_sequence<std::variant_size_v<Kinds>>());
  if (known) return message;
  throw Error(ErrorKind::peer_lost, "a message of unknown kind " + std::to_string(number),
              "all ranks must run the same version of penstock");
}

}  // namespace penstock::codec
