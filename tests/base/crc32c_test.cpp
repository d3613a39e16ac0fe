// RFC 3720's vectors, and the instruction against the table.
#include "runtime/base/crc32c.h"

#include <doctest/doctest.h>

#include <random>
#include <vector>

namespace penstock {
namespace {

TEST_CASE("published vectors (RFC 3720 B.4)") {
  CHECK(crc32c("123456789", 9) == 0xe3069283);
  CHECK(crc32c(nullptr, 0) == 0);
  std::vector<uint8_t> bytes(32, 0);
  CHECK(crc32c(bytes.data(), 32) == 0x8a9136aa);
  bytes.assign(32, 0xff);
  CHECK(crc32c(bytes.data(), 32) == 0x62a8ab43);
  for (size_t i = 0; i < 32; ++i) bytes[i] = static_cast<uint8_t>(i);
  CHECK(crc32c(bytes.data(), 32) == 0x46dd794e);
  for (size_t i = 0; i < 32; ++i) bytes[i] = static_cast<uint8_t>(31 - i);
  CHECK(crc32c(bytes.data(), 32) == 0x113fdb5c);
  CHECK(crc32c_portable("123456789", 9) == 0xe3069283);
}

TEST_CASE("instruction and table agree for every small size and misalignment, and in pieces") {
  constexpr uint32_t kSeed = 5;
  MESSAGE("seed " << kSeed);
  std::mt19937 random(kSeed);
  std::vector<uint8_t> bytes(4096 + 16);
  for (uint8_t& b : bytes) b = static_cast<uint8_t>(random());
  for (size_t offset = 0; offset < 16; ++offset) {
    for (size_t size = 0; size < 200; ++size) {
      REQUIRE(crc32c(&bytes[offset], size) == crc32c_portable(&bytes[offset], size));
    }
    REQUIRE(crc32c(&bytes[offset], 4096) == crc32c_portable(&bytes[offset], 4096));
  }
  const uint32_t whole = crc32c(bytes.data(), 1000);
  for (size_t cut = 0; cut <= 1000; cut += 7) {
    REQUIRE(crc32c(&bytes[cut], 1000 - cut, crc32c(bytes.data(), cut)) == whole);
    REQUIRE(crc32c_portable(&bytes[cut], 1000 - cut, crc32c(bytes.data(), cut)) == whole);
  }
}

}  // namespace
}  // namespace penstock
