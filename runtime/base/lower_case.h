// A text in small letters; ASCII's alone change.
//
//   lower_case("JPEG");   // "jpeg"
//
// Pure function.
#pragma once

#include <string>
#include <string_view>

namespace penstock {

inline std::string lower_case(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

}  // namespace penstock
