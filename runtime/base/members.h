// The members of a plain struct, in the order in which they are declared: what has to do something with each of them
// needs no list of its own, which could lack one.
//
//   std::apply([](auto&... member) { (fill(member), ...); }, members_of(message));
//
// For aggregates of at most 16 members, none of them an array. Thread-safety, ownership: references to the struct's own.
#pragma once

#include <cstddef>
#include <tuple>
#include <type_traits>

namespace penstock {

struct AnyMember {
  template <class T>
  operator T() const;  // never defined: counts members only
};

template <class T, class... Members>
constexpr size_t count_members() {
  if constexpr (requires { T{Members{}..., AnyMember{}}; }) {
    return count_members<T, Members..., AnyMember>();
  } else {
    return sizeof...(Members);
  }
}

template <class T>
auto members_of(T& of) {
  constexpr size_t count = count_members<std::remove_const_t<T>>();
  static_assert(count <= 16, "add a case");
#define PENSTOCK_MEMBERS(number, ...) \
  if constexpr (count == number) {    \
    auto& [__VA_ARGS__] = of;         \
    return std::tie(__VA_ARGS__);     \
  } else
  PENSTOCK_MEMBERS(1, a)
  PENSTOCK_MEMBERS(2, a, b)
  PENSTOCK_MEMBERS(3, a, b, c)
  PENSTOCK_MEMBERS(4, a, b, c, d)
  PENSTOCK_MEMBERS(5, a, b, c, d, e)
  PENSTOCK_MEMBERS(6, a, b, c, d, e, f)
  PENSTOCK_MEMBERS(7, a, b, c, d, e, f, g)
  PENSTOCK_MEMBERS(8, a, b, c, d, e, f, g, h)
  PENSTOCK_MEMBERS(9, a, b, c, d, e, f, g, h, i)
  PENSTOCK_MEMBERS(10, a, b, c, d, e, f, g, h, i, j)
  PENSTOCK_MEMBERS(11, a, b, c, d, e, f, g, h, i, j, k)
  PENSTOCK_MEMBERS(12, a, b, c, d, e, f, g, h, i, j, k, l)
  PENSTOCK_MEMBERS(13, a, b, c, d, e, f, g, h, i, j, k, l, m)
  PENSTOCK_MEMBERS(14, a, b, c, d, e, f, g, h, i, j, k, l, m, n)
  PENSTOCK_MEMBERS(15, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o)
  PENSTOCK_MEMBERS(16, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p) {
    return std::tie();
  }
#undef PENSTOCK_MEMBERS
}

}  // namespace penstock
