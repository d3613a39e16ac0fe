#include "runtime/base/utf8.h"

namespace penstock {

Character decode_utf8(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) -> uint32_t { return static_cast<unsigned char>(text[i]); };
  const uint32_t first = byte(at);
  if (first < 0x80) return {first, 1};
  size_t bytes = 0;
  uint32_t code = 0;
  uint32_t least = 0;
  if (first >= 0xC2 && first <= 0xDF) {
    bytes = 2, code = first & 0x1F, least = 0x80;
  } else if (first >= 0xE0 && first <= 0xEF) {
    bytes = 3, code = first & 0x0F, least = 0x800;
  } else if (first >= 0xF0 && first <= 0xF4) {
    bytes = 4, code = first & 0x07, least = 0x10000;
  } else {
    return {first, 0};
  }
  if (at + bytes > text.size()) return {first, 0};
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(at + i) & 0xC0) != 0x80) return {first, 0};
    code = (code << 6) | (byte(at + i) & 0x3F);
  }
  if (code < least || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) return {first, 0};
  return {code, bytes};
}

std::string without_controls(std::string_view text) {
  constexpr const char* digits = "0123456789abcdef";
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const auto [code, well_formed] = decode_utf8(text, at);
    const size_t bytes = well_formed == 0 ? 1 : well_formed;
    const bool control =
        well_formed != 0 && code != '\n' && code != '\t' && (code < 0x20 || (code >= 0x7F && code < 0xA0));
    if (control) {
      ((out += code < 0x80 ? "\\x" : "\\u00") += digits[code >> 4]) += digits[code & 15];
    } else {
      out += text.substr(at, bytes);
    }
    at += bytes;
  }
  return out;
}

size_t first_not_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const size_t bytes = decode_utf8(text, at).bytes;
    if (bytes == 0) return at;
    at += bytes;
  }
  return text.size();
}

}  // namespace penstock
