// How a table of keys is written down: one line a key, which names a member of the struct that the file becomes.
//
//   KeyTable<Job> keys;
//   keys.section("loader", "The loader ranks.");
//   keys.machinery(PENSTOCK_MEMBER(loader.threads), integer(1, 1024), "CPU threads per loader rank.");
//   return keys.take();
//
// Internal to runtime/job: key_table.cpp has the job's, cluster.cpp the cluster's.
#pragma once

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "runtime/job/key_table.h"

namespace penstock {

template <class M>
ParamValue to_value(const M& member, const ParamInfo& info) {
  if constexpr (std::is_enum_v<M>) {
    return info.choices.at(static_cast<size_t>(member));
  } else if constexpr (std::is_same_v<M, std::optional<double>>) {
    return member ? ParamValue(*member) : ParamValue();
  } else if constexpr (std::is_same_v<M, CpuFraction>) {
    return member.by_speed ? ParamValue(info.choices.front()) : to_value(member.share, info);
  } else if constexpr (std::is_same_v<M, bool> || std::is_same_v<M, std::string> || std::is_same_v<M, double>) {
    return member;
  } else {
    static_assert(std::is_integral_v<M>);
    return static_cast<int64_t>(member);
  }
}

template <class M>
void from_value(M& member, const ParamValue& value, const ParamInfo& info) {
  if constexpr (std::is_enum_v<M>) {
    const auto found = std::find(info.choices.begin(), info.choices.end(), std::get<std::string>(value));
    member = static_cast<M>(found - info.choices.begin());
  } else if constexpr (std::is_same_v<M, std::optional<double>>) {
    const auto* const number = std::get_if<double>(&value);
    member = number != nullptr ? M(*number) : M();
  } else if constexpr (std::is_same_v<M, CpuFraction>) {
    member.by_speed = std::holds_alternative<std::string>(value);
    from_value(member.share, value, info);
  } else if constexpr (std::is_same_v<M, bool> || std::is_same_v<M, std::string> || std::is_same_v<M, double>) {
    member = std::get<M>(value);
  } else {
    member = static_cast<M>(std::get<int64_t>(value));
  }
}

// A member of the job, and how the job file calls it. Of is the type of a generic lambda without captures that returns a
// reference to it, const or not.
template <class Of>
struct Member {
  const char* path;
  Of of;
};
template <class Of>
Member(const char*, Of) -> Member<Of>;

#define PENSTOCK_MEMBER(path)      \
  Member {                         \
#path, [](auto&& t) -> auto& { \
      return t.path;               \
    }                              \
  }

// Sections and their keys, in the order in which they are written down. A key has the name of its member, whose value
// in a default-constructed struct is its default. Enumerations rely on their values counting from 0 in the order of
// `one_of`.
template <class T>
class KeyTable {
 public:
  void section(std::string name, std::string doc) { sections_.push_back({std::move(name), std::move(doc), {}}); }

  // Keys of the last section: those that decide what a stream contains or when it fails, and the others.
  template <class Of>
  Key<T>& content(Member<Of> member, ParamInfo info, const char* doc) {
    Key<T>& key = machinery(std::move(member), std::move(info), doc);
    key.content = true;
    return key;
  }
  // What depends on the member's type is kept small: it is compiled once for each of some hundred keys.
  template <class Of>
  Key<T>& machinery(Member<Of> member, ParamInfo info, const char* doc) {
    using M = std::remove_cvref_t<decltype(member.of(std::declval<T&>()))>;
    if constexpr (std::is_same_v<M, int>) info.maximum = std::min(info.maximum, 2147483647.0);
    return add(
        member.path, info, doc, [](const T& t, const ParamInfo& of_key) { return to_value(Of{}(t), of_key); },
        [](T& t, const ParamValue& value, const ParamInfo& of_key) { from_value(Of{}(t), value, of_key); });
  }
  void all_sparse() {
    for (Key<T>& one : sections_.back().keys) one.sparse = true;
  }
  void one_of(std::string name) { sections_.back().one_of.push_back(std::move(name)); }

  std::vector<Section<T>> take() { return std::move(sections_); }

 private:
  using Get = ParamValue (*)(const T&, const ParamInfo&);
  using Set = void (*)(T&, const ParamValue&, const ParamInfo&);

  Key<T>& add(const std::string& path, ParamInfo& info, const char* doc, Get get, Set set) {
    info.name = path.substr(path.rfind('.') + 1);
    info.doc = doc;
    info.default_value = get(T{}, info);
    Key<T> key;
    key.get = [get, info](const T& t) { return get(t, info); };
    key.set = [set, info](T& t, const ParamValue& value) { set(t, value, info); };
    key.info = std::move(info);
    sections_.back().keys.push_back(std::move(key));
    return sections_.back().keys.back();
  }

  std::vector<Section<T>> sections_;
};

inline ParamInfo integer(double minimum, double maximum) {
  return {.kind = ParamKind::integer, .minimum = minimum, .maximum = maximum};
}
inline ParamInfo number(double minimum, double maximum) {
  return {.kind = ParamKind::number, .minimum = minimum, .maximum = maximum};
}
inline ParamInfo number_or(std::string choice, double minimum, double maximum) {
  return {.kind = ParamKind::number, .minimum = minimum, .maximum = maximum, .choices = {std::move(choice)}};
}
inline ParamInfo boolean() {
  return {.kind = ParamKind::boolean};
}
inline ParamInfo text() {
  return {.kind = ParamKind::text};
}
inline ParamInfo one_of(std::vector<std::string> choices) {
  return {.kind = ParamKind::text, .choices = std::move(choices)};
}
inline ParamInfo mapping() {
  return {.kind = ParamKind::mapping};
}

inline constexpr double kUnbounded = std::numeric_limits<double>::infinity();

}  // namespace penstock
