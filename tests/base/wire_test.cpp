// What is written reads back; a reader never goes past the end, whatever the bytes say.
#include "runtime/base/wire.h"

#include <doctest/doctest.h>

#include <limits>

namespace penstock {
namespace {

TEST_CASE("every type reads back, and end() is satisfied") {
  WireWriter out;
  out.u8(255);
  out.u16(65535);
  out.u32(0xdeadbeef);
  out.u64(~uint64_t{0});
  out.i32(std::numeric_limits<int32_t>::min());
  out.i64(-1);
  out.f64(0.1);
  out.text("däta");
  out.text("");
  WireReader in(out.bytes());
  CHECK(in.u8() == 255);
  CHECK(in.u16() == 65535);
  CHECK(in.u32() == 0xdeadbeef);
  CHECK(in.u64() == ~uint64_t{0});
  CHECK(in.i32() == std::numeric_limits<int32_t>::min());
  CHECK(in.i64() == -1);
  CHECK(in.f64() == 0.1);
  CHECK(in.text() == "däta");
  CHECK(in.text().empty());
  CHECK(in.left() == 0);
  in.end();
}

TEST_CASE("numbers are little-endian") {
  WireWriter out;
  out.u32(0x01020304);
  CHECK(out.bytes()[0] == std::byte{4});
  CHECK(out.bytes()[3] == std::byte{1});
}

TEST_CASE("every truncation is an Error(peer_lost) that names the message") {
  WireWriter out;
  out.u64(7);
  out.text("abc");
  for (size_t size = 0; size < out.size(); ++size) {
    WireReader in(std::span(out.bytes()).first(size), "greeting");
    try {
      in.u64();
      in.text();
      FAIL("read past the end at ", size);
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::peer_lost);
      CHECK(error.message().find("greeting") != std::string::npos);
    }
  }
}

TEST_CASE("a length of 4 GB in a message of 8 bytes takes no memory") {
  WireWriter out;
  out.u32(0xffffffff);
  out.u32(0);
  WireReader in(out.bytes());
  CHECK_THROWS_AS(in.text(), Error);
  WireReader raw(out.bytes());
  CHECK_THROWS_AS(raw.raw(std::numeric_limits<size_t>::max()), Error);
  CHECK(raw.left() == 8);  // a failed read moves nothing
}

TEST_CASE("bytes too many are an error") {
  WireWriter out;
  out.u16(1);
  WireReader in(out.bytes());
  in.u8();
  CHECK_THROWS_AS(in.end(), Error);
}

}  // namespace
}  // namespace penstock
