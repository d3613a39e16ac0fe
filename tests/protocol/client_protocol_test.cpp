// What a program and its receiver send each other: as for the ranks' messages, see protocol_test.cpp.
#include "runtime/protocol/client_protocol.h"

#include <doctest/doctest.h>

#include "runtime/base/error.h"
#include "tests/support/random_message.h"

namespace penstock {

inline void fill(ClientBufferRange& v, testing::Random& random) {
  testing::fill(v.exported, random);
  testing::fill(v.first, random);
  testing::fill(v.samples, random);
  testing::fill(v.at, random);
  testing::fill(v.bytes, random);
}

namespace {

using testing::Random;

TEST_CASE("every kind of message arrives with all its members") {
  constexpr uint64_t kSeed = 2025;
  MESSAGE("seed " << kSeed);
  Random random(kSeed);
  for (size_t kind = 0; kind < testing::kKinds<ClientMessage>; ++kind) {
    for (int i = 0; i < 100; ++i) {
      const auto message = testing::random_message<ClientMessage>(kind, random);
      REQUIRE(testing::same_message(message, decode_client(encode_client(message))));
    }
  }
}

TEST_CASE("damaged messages decode to something or are Error(peer_lost)") {
  constexpr uint64_t kSeed = 98;
  MESSAGE("seed " << kSeed);
  Random random(kSeed);
  int refused = 0;
  for (int i = 0; i < 20'000; ++i) {
    Message bytes =
        encode_client(testing::random_message<ClientMessage>(random() % testing::kKinds<ClientMessage>, random));
    testing::damage(bytes, random);
    try {
      (void)decode_client(bytes);
    } catch (const Error& error) {
      REQUIRE(error.kind() == ErrorKind::peer_lost);
      ++refused;
    }
  }
  CHECK(refused > 5'000);
}

TEST_CASE("parts of a batch buffer are aligned, apart, and end on a page") {
  const FieldTable fields{{"image", FieldKind::image, DType::float16, {3, 5, 7}},
                          {"label", FieldKind::tensor, DType::int64, {}}};
  for (const int64_t batch : {1, 2, 7, 64, 1000}) {
    const BatchBufferLayout layout = batch_buffer_layout(fields, batch);
    const auto n = static_cast<size_t>(batch);
    const std::vector<std::pair<size_t, size_t>> parts{{layout.indices, n * 8},
                                                       {layout.valid, n},
                                                       {layout.substituted, n},
                                                       {layout.fields[0], n * 210},
                                                       {layout.fields[1], n * 8}};
    size_t end = 0;
    for (const auto& [at, bytes] : parts) {
      REQUIRE(at % 64 == 0);
      REQUIRE(at >= end);
      end = at + bytes;
    }
    CHECK(layout.total_bytes >= end);
    CHECK(layout.total_bytes % 4096 == 0);
  }
}

}  // namespace
}  // namespace penstock
