#include "runtime/base/field_value.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "runtime/base/hash.h"
#include "runtime/base/utf8.h"

namespace penstock {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

constexpr std::byte kUntouched{0xA5};

TEST_CASE("a value of any length up to the limit, in a room of its own") {
  for (const FieldKind kind : {FieldKind::text, FieldKind::bytes}) {
    const FieldSpec field{.name = "note", .kind = kind, .max_bytes = 13};
    const size_t room = field.bytes_per_sample();
    CHECK(room == 24);
    for (const std::string text : {"", "a", "exactly 13 by", "gr\xC3\xBC\xC3\x9F"}) {
      std::vector<std::byte> memory(room + 1, kUntouched);
      REQUIRE(put_value(field, bytes_of(text), memory.data()).ok());
      CHECK(as_text(varying_value(field, memory.data())) == text);
      const auto stored = stored_bytes(field, memory.data());
      CHECK(stored.size() == 4 + text.size());
      CHECK(static_cast<size_t>(stored[0]) == text.size());
      for (size_t at = stored.size(); at < memory.size(); ++at) REQUIRE(memory[at] == kUntouched);
      put_nothing(field, memory.data());
      CHECK(varying_value(field, memory.data()).empty());
    }
    std::vector<std::byte> memory(room, kUntouched);
    CHECK(put_value(field, bytes_of("fourteen bytes"), memory.data()).reason ==
          "field 'note' has 14 bytes, above limits.max_field_bytes (13)");
    CHECK(memory == std::vector<std::byte>(room, kUntouched));
  }
}

TEST_CASE("a length that a program wrote over reaches no further than its room") {
  const FieldSpec field{.name = "note", .kind = FieldKind::bytes, .max_bytes = 8};
  const std::vector<std::byte> memory(field.bytes_per_sample(), std::byte{0xFF});
  CHECK(varying_value(field, memory.data()).size() == 8);
}

TEST_CASE("a fixed-size value fills its room, or its source is at fault") {
  const FieldSpec field{"box", FieldKind::tensor, DType::int32, {2}};
  std::vector<std::byte> memory(9, kUntouched);
  REQUIRE(put_value(field, bytes_of("12345678"), memory.data()).ok());
  CHECK(as_text(stored_bytes(field, memory.data())) == "12345678");
  CHECK(memory[8] == kUntouched);
  CHECK_THROWS_AS((void)put_value(field, bytes_of("1234567"), memory.data()), Error);
  CHECK_THROWS_AS((void)put_value(field, bytes_of("123456789"), memory.data()), Error);
  put_nothing(field, memory.data());
  CHECK(as_text(stored_bytes(field, memory.data())) == std::string(8, '\0'));
}

TEST_CASE("text is UTF-8; bytes are anything") {
  const std::string good[] = {
      std::string("\0", 1), "\x7F",         "\xC2\x80",     "\xDF\xBF",         "\xE0\xA0\x80",
      "\xED\x9F\xBF",       "\xEE\x80\x80", "\xEF\xBF\xBF", "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF"};
  for (const std::string& text : good) CHECK(first_not_utf8("ab" + text + "c") == text.size() + 3);
  const std::string wrong[] = {"\x80",
                               "\xBF",
                               "\xC0\x80",
                               "\xC1\xBF",
                               "\xC2",
                               "\xC2"
                               "c",
                               "\xE0\x9F\xBF",
                               "\xE2\x82",
                               "\xED\xA0\x80",
                               "\xED\xBF\xBF",
                               "\xF0\x8F\xBF\xBF",
                               "\xF0\x9F\x98",
                               "\xF4\x90\x80\x80",
                               "\xF5\x80\x80\x80",
                               "\xFF"};
  const FieldSpec text{.name = "t", .kind = FieldKind::text, .max_bytes = 100};
  const FieldSpec bytes{.name = "b", .kind = FieldKind::bytes, .max_bytes = 100};
  std::vector<std::byte> room(text.bytes_per_sample());
  for (const std::string& part : wrong) {
    CHECK(first_not_utf8("ab" + part) == 2);
    CHECK(put_value(text, bytes_of("ab" + part), room.data()).reason == "field 't' is not UTF-8 text at byte 2");
    CHECK(put_value(bytes, bytes_of("ab" + part), room.data()).ok());
  }
}

TEST_CASE("names on a terminal") {
  CHECK(without_controls("a\nb\tc \xC3\xBC \xFF") == "a\nb\tc \xC3\xBC \xFF");
  CHECK(without_controls("\x1b[2J\r\x7F" + std::string(1, '\0')) == "\\x1b[2J\\x0d\\x7f\\x00");
  CHECK(without_controls("\xC2\x9B"
                         "31m\xC2\xA0") == "\\u009b31m\xC2\xA0");
}

TEST_CASE("where one value ends and the next begins is part of the hash") {
  const FieldSpec field{.name = "note", .kind = FieldKind::text, .max_bytes = 8};
  const auto pixel = [&](std::string_view first, std::string_view second) {
    std::vector<std::byte> rooms(2 * field.bytes_per_sample());
    std::byte* const other = rooms.data() + field.bytes_per_sample();
    REQUIRE(put_value(field, bytes_of(first), rooms.data()).ok());
    REQUIRE(put_value(field, bytes_of(second), other).ok());
    const std::span<const std::byte> content[] = {stored_bytes(field, rooms.data()), stored_bytes(field, other)};
    StreamHash sum;
    sum.add(sample_record("train", 0, {}, {}, 0), content);
    return sum.pixel;
  };
  CHECK(pixel("ab", "c") == pixel("ab", "c"));
  CHECK_FALSE(pixel("ab", "c") == pixel("a", "bc"));
  CHECK_FALSE(pixel("", "c") == pixel("c", ""));
}

}  // namespace
}  // namespace penstock
