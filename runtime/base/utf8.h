// UTF-8, as Unicode defines it: no overlong forms, no surrogates, nothing above U+10FFFF. What Python's strict decoder
// takes, too.
//
//   if (first_not_utf8(text) < text.size()) …
//
// Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace penstock {

struct Character {
  uint32_t code = 0;
  size_t bytes = 1;  // 0: not well-formed
};

// The character that begins at text[at]; `at` lies inside.
Character decode_utf8(std::string_view text, size_t at);

// The offset of the first byte that begins no character; text.size(): there is none.
size_t first_not_utf8(std::string_view text);

// For a terminal, which obeys control characters in names of files: they become \x1b and \u009b; line feeds, tabs and
// what is not UTF-8 stay.
std::string without_controls(std::string_view text);

}  // namespace penstock
