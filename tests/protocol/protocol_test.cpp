// What ranks send each other: every member of every message arrives, and no bytes whatever crash a rank or make it
// take memory that the message does not hold.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "runtime/base/crc32c.h"
#include "runtime/base/error.h"
#include "runtime/base/field_value.h"
#include "runtime/protocol/chunk.h"
#include "runtime/protocol/messages.h"
#include "tests/support/random_message.h"

namespace {
size_t largest_allocation = 0;
}
// Counts what is asked for at a time, to see that a length field alone takes no memory.
void* operator new(size_t size) {
  largest_allocation = std::max(largest_allocation, size);
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}

namespace penstock {
namespace {

using testing::Random;

// As encode() ends a message.
Message with_checksum(Message body) {
  const uint32_t crc = crc32c(body.data(), body.size());
  for (int i = 0; i < 4; ++i) body.push_back(static_cast<std::byte>(crc >> (8 * i)));
  return body;
}

TEST_CASE("every kind of message arrives with all its members") {
  constexpr uint64_t kSeed = 2024;
  MESSAGE("seed " << kSeed);
  Random random(kSeed);
  for (size_t kind = 0; kind < testing::kKinds<ControlMessage>; ++kind) {
    for (int i = 0; i < 100; ++i) {
      const auto message = testing::random_message<ControlMessage>(kind, random);
      REQUIRE(message.index() == kind);
      REQUIRE(testing::same_message(message, decode(encode(message))));
    }
  }
}

TEST_CASE("every truncation of every kind is an Error(peer_lost)") {
  Random random(7);
  for (size_t kind = 0; kind < testing::kKinds<ControlMessage>; ++kind) {
    const Message bytes = encode(testing::random_message<ControlMessage>(kind, random));
    for (size_t size = 0; size < bytes.size(); ++size) {
      try {
        (void)decode(std::span(bytes).first(size));
        FAIL("kind ", kind, " cut to ", size, " of ", bytes.size(), " bytes was taken");
      } catch (const Error& error) {
        REQUIRE(error.kind() == ErrorKind::peer_lost);
      }
    }
    Message longer = bytes;
    longer.push_back(std::byte{0});
    CHECK_THROWS_AS((void)decode(longer), Error);
  }
  CHECK_THROWS_WITH_AS((void)decode(with_checksum(Message(1, std::byte{200}))), doctest::Contains("unknown kind 200"),
                       Error);
}

TEST_CASE("a message with one bit flipped anywhere is refused") {
  Random random(8);
  for (size_t kind = 0; kind < testing::kKinds<ControlMessage>; ++kind) {
    Message bytes = encode(testing::random_message<ControlMessage>(kind, random));
    for (size_t bit = 0; bit < 8 * bytes.size(); bit += 1 + random() % 16) {
      bytes[bit / 8] ^= std::byte{1} << (bit % 8);
      CHECK_THROWS_WITH_AS((void)decode(bytes), doctest::Contains("damaged"), Error);
      bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    }
  }
}

TEST_CASE("nonsense with a good checksum decodes to something or is refused, and takes little memory") {
  constexpr uint64_t kSeed = 99;
  MESSAGE("seed " << kSeed);
  Random random(kSeed);
  int refused = 0;
  largest_allocation = 0;
  for (int i = 0; i < 30'000; ++i) {
    Message bytes = encode(testing::random_message<ControlMessage>(random() % testing::kKinds<ControlMessage>, random));
    bytes.resize(bytes.size() - 4);
    testing::damage(bytes, random);
    try {
      (void)decode(with_checksum(std::move(bytes)));
    } catch (const Error& error) {
      REQUIRE(error.kind() == ErrorKind::peer_lost);
      ++refused;
    }
  }
  CHECK(refused > 10'000);
  CHECK(largest_allocation < 100'000);
}

SampleRecord random_record(Random& random) {
  SampleRecord r;
  testing::fill(r.planned, random);
  testing::fill(r.index, random);
  testing::fill(r.bad, random);
  testing::fill(r.padding, random);
  testing::fill(r.substituted, random);
  testing::fill(r.attempts, random);
  testing::fill(r.width, random);
  testing::fill(r.height, random);
  testing::fill(r.key, random);
  testing::fill(r.reason, random);
  r.draws.resize(random() % 4);
  for (TransformDraw& draw : r.draws) {
    testing::fill(draw.position, random);
    testing::fill(draw.values, random);
  }
  testing::fill(r.on_gpu, random);
  if (random() % 2 == 0) {
    Sum128& hash = r.pixel_hash.emplace();
    testing::fill(hash.low, random);
    testing::fill(hash.high, random);
  }
  return r;
}

ChunkHeader random_header(Random& random, int32_t samples) {
  ChunkHeader h;
  testing::fill(h.lease, random);
  testing::fill(h.fingerprint, random);
  testing::fill(h.epoch, random);
  testing::fill(h.replica, random);
  h.lease.chunk &= 0x7fffffff;
  h.arithmetic = static_cast<uint8_t>(random());
  h.first_row = static_cast<int32_t>(random() & 0x7fffffff);
  h.samples = samples;
  testing::fill(h.payload_bytes, random);
  testing::fill(h.payload_crc, random);
  if (random() % 2 == 0) {
    ChunkBufferRange& buffer_range = h.buffer_range.emplace();
    buffer_range.gpu = static_cast<int32_t>(random() & 0x7fffffff);
    testing::fill(buffer_range.id, random);
    testing::fill(buffer_range.at, random);
    testing::fill(buffer_range.bytes, random);
  }
  return h;
}

Message random_envelope(Random& random) {
  std::vector<SampleRecord> records(1 + random() % 6);
  for (SampleRecord& r : records) r = random_record(random);
  return encode_envelope(random_header(random, static_cast<int32_t>(records.size())), records);
}

TEST_CASE("an envelope arrives with its header and all records") {
  constexpr uint64_t kSeed = 31;
  MESSAGE("seed " << kSeed);
  Random random(kSeed);
  for (int i = 0; i < 300; ++i) {
    std::vector<SampleRecord> records(1 + random() % 16);
    for (SampleRecord& r : records) r = random_record(random);
    const ChunkHeader header = random_header(random, static_cast<int32_t>(records.size()));
    ChunkHeader got;
    std::vector<SampleRecord> got_records(3);  // what stood there before is replaced
    decode_envelope(encode_envelope(header, records), got, got_records);
    REQUIRE(members_of(got) == members_of(std::as_const(header)));
    REQUIRE(got_records.size() == records.size());
    for (size_t r = 0; r < records.size(); ++r) {
      REQUIRE(members_of(got_records[r]) == members_of(records[r]));
    }
  }
}

TEST_CASE("any one to three flipped bits of an envelope are found, and any cut") {
  constexpr uint64_t kSeed = 32;
  MESSAGE("seed " << kSeed);
  Random random(kSeed);
  ChunkHeader header;
  std::vector<SampleRecord> records;
  const Message good = random_envelope(random);
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    Message bad = good;
    bad[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    REQUIRE_THROWS_AS(decode_envelope(bad, header, records), Error);
  }
  for (int i = 0; i < 5000; ++i) {
    Message bad = good;
    const size_t flips = 2 + random() % 2;
    for (size_t f = 0; f < flips; ++f) bad[random() % bad.size()] ^= static_cast<std::byte>(1 << random() % 8);
    if (bad == good) continue;
    REQUIRE_THROWS_AS(decode_envelope(bad, header, records), Error);
  }
  for (size_t size = 0; size < good.size(); ++size) {
    REQUIRE_THROWS_AS(decode_envelope(std::span(good).first(size), header, records), Error);
  }
}

TEST_CASE("an envelope that counts wrong, with a right checksum, is refused without taking memory") {
  Random random(33);
  ChunkHeader header;
  std::vector<SampleRecord> records;
  for (const int32_t samples : {0, -1, 2, 0x7fffffff}) {
    const Message bytes = encode_envelope(random_header(random, samples), {random_record(random)});
    largest_allocation = 0;
    CHECK_THROWS_AS(decode_envelope(bytes, header, records), Error);
    CHECK(largest_allocation < 100'000);
  }
  ChunkHeader negative = random_header(random, 1);
  negative.first_row = -4;
  CHECK_THROWS_AS(decode_envelope(encode_envelope(negative, {random_record(random)}), header, records), Error);
}

TEST_CASE("fields of a chunk begin at multiples of 64 bytes and do not overlap") {
  const FieldTable fields{{"image", FieldKind::image, DType::uint8, {3, 5, 7}},
                          {"label", FieldKind::tensor, DType::int64, {}},
                          {"mask", FieldKind::mask, DType::uint8, {5, 7}}};
  for (int64_t samples = 1; samples < 40; ++samples) {
    const FieldLayout layout = chunk_layout(fields, samples);
    REQUIRE(layout.offsets.size() == 3);
    size_t end = 0;
    for (size_t f = 0; f < 3; ++f) {
      REQUIRE(layout.offsets[f] % 64 == 0);
      REQUIRE(layout.offsets[f] >= end);
      end = layout.offsets[f] + fields[f].bytes_per_sample() * static_cast<size_t>(samples);
    }
    REQUIRE(layout.total_bytes >= end);
    REQUIRE(layout.total_bytes < end + 64);
  }
}

// A chunk of 1 to 9 samples with values of random lengths, and its payload.
struct Packed {
  FieldTable fields{{"note", FieldKind::text, DType::uint8, {}, 11},
                    {"image", FieldKind::image, DType::uint8, {3, 5, 7}},
                    {"blob", FieldKind::bytes, DType::uint8, {}, 300},
                    {"label", FieldKind::tensor, DType::int64, {}}};
  int64_t samples = 1;
  std::vector<std::vector<std::byte>> values;  // of each field and sample, as stored
  std::vector<std::byte> memory;
  size_t bytes = 0;

  explicit Packed(Random& random) : samples(1 + static_cast<int64_t>(random() % 9)) {
    const FieldLayout layout = chunk_layout(fields, samples);
    memory.assign(layout.total_bytes, std::byte{0xA5});
    for (size_t f = 0; f < fields.size(); ++f) {
      for (int64_t i = 0; i < samples; ++i) {
        const size_t most =
            fields[f].fixed_size() ? fields[f].bytes_per_sample() : static_cast<size_t>(fields[f].max_bytes);
        std::vector<std::byte> value(fields[f].fixed_size() || random() % 4 == 0 ? most : random() % (most + 1));
        for (std::byte& one : value) one = static_cast<std::byte>(random() % 128);
        std::byte* room = memory.data() + layout.offsets[f] + static_cast<size_t>(i) * fields[f].bytes_per_sample();
        REQUIRE(put_value(fields[f], value, room).ok());
        const auto stored = stored_bytes(fields[f], room);
        values.emplace_back(stored.begin(), stored.end());
      }
    }
    bytes = pack_chunk(fields, samples, memory.data());
  }
};

TEST_CASE("values of varying length are packed behind the others, and found again") {
  Random random(19);
  for (int turn = 0; turn < 300; ++turn) {
    const Packed chunk(random);
    const std::span<const std::byte> payload(chunk.memory.data(), chunk.bytes);
    const FieldLayout layout = chunk_layout(chunk.fields, chunk.samples);
    const auto varying = packed_values(chunk.fields, chunk.samples, payload);
    REQUIRE(varying.size() == 2);
    size_t expected = layout.fixed_bytes;
    auto value = chunk.values.begin();
    for (size_t f = 0; f < chunk.fields.size(); ++f) {
      for (int64_t i = 0; i < chunk.samples; ++i, ++value) {
        const auto at = static_cast<size_t>(i);
        const size_t room = chunk.fields[f].bytes_per_sample();
        const bool varies = !chunk.fields[f].fixed_size();
        const auto found = varies ? varying[f == 0 ? 0 : 1][at] : payload.subspan(layout.offsets[f] + at * room, room);
        REQUIRE(std::ranges::equal(found, *value));
        if (varies) expected += value->size();
      }
    }
    REQUIRE(chunk.bytes == expected);
  }
}

TEST_CASE("a payload whose lengths do not add up is refused") {
  Random random(20);
  for (int turn = 0; turn < 100; ++turn) {
    Packed chunk(random);
    const std::span<const std::byte> payload(chunk.memory.data(), chunk.bytes);
    CHECK_THROWS_AS((void)packed_values(chunk.fields, chunk.samples, payload.first(chunk.bytes - 1)), Error);
    CHECK_THROWS_AS((void)packed_values(chunk.fields, chunk.samples, payload.first(10)), Error);
    REQUIRE(chunk.bytes < chunk.memory.size());  // the rooms had more than the values
    const std::span<const std::byte> longer(chunk.memory.data(), chunk.bytes + 1);
    CHECK_THROWS_AS((void)packed_values(chunk.fields, chunk.samples, longer), Error);
    std::memset(chunk.memory.data() + chunk_layout(chunk.fields, chunk.samples).fixed_bytes, 0xFF, 4);
    CHECK_THROWS_AS((void)packed_values(chunk.fields, chunk.samples, payload), Error);
  }
}

TEST_CASE("a chunk of fixed-size fields is sent as it was made") {
  const FieldTable fields{{"image", FieldKind::image, DType::uint8, {3, 5, 7}},
                          {"label", FieldKind::tensor, DType::int64, {}}};
  for (int64_t samples = 1; samples < 5; ++samples) {
    const FieldLayout layout = chunk_layout(fields, samples);
    std::vector<std::byte> memory(layout.total_bytes, std::byte{7});
    CHECK(layout.fixed_bytes == layout.total_bytes);
    CHECK(pack_chunk(fields, samples, memory.data()) == layout.total_bytes);
    CHECK(packed_values(fields, samples, memory).empty());
    CHECK(memory == std::vector<std::byte>(layout.total_bytes, std::byte{7}));
  }
}

TEST_CASE("a fingerprint is a function of the text") {
  CHECK(fingerprint_of("{}") == fingerprint_of("{}"));
  CHECK(fingerprint_of("{}") != fingerprint_of("{ }"));
}

}  // namespace
}  // namespace penstock
