// The stream's hashes: the layout of the record is a promise (anybody may recompute it), so its bytes are spelled out
// here; and sums compose in any order and grouping.
#include "runtime/base/hash.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <random>

#include "runtime/base/error.h"

namespace penstock {
namespace {

std::string hex_of(const std::vector<std::byte>& bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const std::byte b : bytes) {
    text += kDigits[static_cast<int>(b) >> 4];
    text += kDigits[static_cast<int>(b) & 15];
  }
  return text;
}

TEST_CASE("hash128 is XXH3-128 with seed 0, written high half first") {
  // xxhash's own value for the empty input.
  CHECK(hash128("").hex() == "99aa06d3014798d86001c324468d497f");
}

TEST_CASE("the record of a sample, byte for byte") {
  const PlannedSample sample{.position = 258, .index = 7, .occurrence = 1, .valid = true};
  const Draws draws{{0, {5, -1}}, {3, {}}};
  const std::vector<std::byte> record = sample_record("val", 2, sample, draws, -100);
  CHECK(hex_of(record) ==
        "03"  // version
        "0300"
        "76616c"            // "val"
        "02000000"          // epoch
        "0201000000000000"  // position
        "0700000000000000"  // index
        "0100"
        "01"                // occurrence, valid
        "9cffffffffffffff"  // label
        "0200"              // two transforms drew
        "0000"
        "0200"
        "0500000000000000"
        "ffffffffffffffff"
        "0300"
        "0000");
}

TEST_CASE("order covers the record, pixel the record and the fields") {
  const std::vector<std::byte> record = sample_record("train", 0, {}, {}, 4);
  const std::array<std::byte, 3> first{std::byte{1}, std::byte{2}, std::byte{3}};
  const std::array<std::byte, 2> second{std::byte{9}, std::byte{8}};
  const std::array<std::span<const std::byte>, 2> fields{first, second};
  StreamHash hash;
  hash.add(record, fields);
  std::vector<std::byte> all = record;
  all.insert(all.end(), first.begin(), first.end());
  all.insert(all.end(), second.begin(), second.end());
  CHECK(hash.order == hash128(record));
  CHECK(hash.pixel == hash128(all));
  CHECK(hash.samples == 1);
}

TEST_CASE("a mixed batch adds its record to both sums, and no sample") {
  const std::vector<std::byte> record = batch_record("ab", 3, 7, 2, {{5, {-1, 258}}});
  const uint8_t wanted[] = {4, 2, 0, 'a', 'b', 3,   0,   0,   0,   7,   0,   0,   0,   0, 0, 0, 0, 2, 0, 0, 0, 1,
                            0, 5, 0, 2,   0,   255, 255, 255, 255, 255, 255, 255, 255, 2, 1, 0, 0, 0, 0, 0, 0};
  REQUIRE(record.size() == sizeof wanted);
  CHECK(std::memcmp(record.data(), wanted, sizeof wanted) == 0);
  StreamHash hash;
  hash.add_batch(record);
  CHECK(hash.order == hash128(record));
  CHECK(hash.pixel == hash128(record));
  CHECK(hash.samples == 0);
}

TEST_CASE("partial sums compose, whatever the order and the grouping") {
  constexpr uint32_t kSeed = 11;
  MESSAGE("seed " << kSeed);
  std::mt19937 random(kSeed);
  std::vector<int> positions(500);
  for (int i = 0; i < 500; ++i) positions[static_cast<size_t>(i)] = i;
  const auto sum = [](const std::vector<int>& which, size_t begin, size_t end) {
    StreamHash hash;
    for (size_t i = begin; i < end; ++i) {
      const PlannedSample sample{.position = which[i], .index = which[i] * 3};
      const auto pixel = static_cast<std::byte>(which[i]);
      const std::span<const std::byte> field(&pixel, 1);
      hash.add(sample_record("s", 0, sample, {}, 0), std::span(&field, 1));
    }
    return hash;
  };
  const StreamHash straight = sum(positions, 0, 500);
  for (int round = 0; round < 20; ++round) {
    std::shuffle(positions.begin(), positions.end(), random);
    const size_t cut = random() % 501;
    StreamHash parts = sum(positions, 0, cut);
    parts += sum(positions, cut, 500);
    REQUIRE(parts.order == straight.order);
    REQUIRE(parts.pixel == straight.pixel);
    REQUIRE(parts.samples == 500);
  }
  // One flipped bit of one field is seen, and only by the pixel hash.
  positions[17] += 0;
  StreamHash other = sum(positions, 0, 499);
  const std::byte flipped = static_cast<std::byte>(positions[499]) ^ std::byte{1};
  const std::span<const std::byte> field(&flipped, 1);
  other.add(sample_record("s", 0, {.position = positions[499], .index = positions[499] * 3}, {}, 0),
            std::span(&field, 1));
  CHECK(other.order == straight.order);
  CHECK_FALSE(other.pixel == straight.pixel);
}

TEST_CASE("sums carry into the high half and wrap at 2^128") {
  Sum128 sum{~uint64_t{0}, 0};
  sum += Sum128{1, 0};
  CHECK(sum == Sum128{0, 1});
  Sum128 top{~uint64_t{0}, ~uint64_t{0}};
  top += Sum128{1, 0};
  CHECK(top == Sum128{});
}

TEST_CASE("hexadecimal there and back; anything else is refused") {
  constexpr uint32_t kSeed = 12;
  std::mt19937_64 random(kSeed);
  for (int i = 0; i < 200; ++i) {
    const Sum128 sum{random(), random()};
    REQUIRE(Sum128::from_hex(sum.hex()) == sum);
  }
  CHECK(Sum128{1, 2}.hex() == "00000000000000020000000000000001");
  for (const char* wrong : {"", "0", "0000000000000002000000000000000", "000000000000000200000000000000011",
                            "0000000000000002000000000000000G", "0000000000000002000000000000000A"}) {
    CHECK_THROWS_AS(Sum128::from_hex(wrong), Error);
  }
}

}  // namespace
}  // namespace penstock
