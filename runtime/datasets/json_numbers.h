// Whole numbers from JSON that nobody vouches for.
//
//   uint64_t bytes = 0;
//   if (!whole_number(json.at("bytes"), bytes)) refuse("a size is no whole number");
//
// nlohmann's get<uint64_t>() takes 1e84, -1 and true too, and what comes of it is the machine's choice or undefined.
// Thread-safety: a pure function. Failure: false, and `out` is as it was.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <utility>

namespace penstock {

template <class Whole>
bool whole_number(const nlohmann::json& value, Whole& out) {
  if (!value.is_number_integer()) return false;
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    if (!std::in_range<Whole>(number)) return false;
    out = static_cast<Whole>(number);
  } else {
    const auto number = value.get<int64_t>();
    if (!std::in_range<Whole>(number)) return false;
    out = static_cast<Whole>(number);
  }
  return true;
}

}  // namespace penstock
