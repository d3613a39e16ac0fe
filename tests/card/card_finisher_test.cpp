// Images finished on a card, here one that is this CPU: the finishing pass's bytes, in bounded memory, and what fails.
#include <doctest/doctest.h>

#include "runtime/card/card_finisher.h"
#include "runtime/card/host_card.h"
#include "tests/card/finisher_checks.h"
#include "tests/support/faulty_card.h"

namespace {

using namespace penstock;
using namespace penstock_test;

constexpr size_t kCardBytes = size_t{64} << 20;

}  // namespace

TEST_CASE("finished images are the finishing pass's, in every dtype and format, however they are cut into pieces") {
  check_finisher(open_host_card(0, kCardBytes));
}

TEST_CASE("images of a batch may lie in what a card shares, beside others that are uploaded") {
  check_shared(open_host_card(0, kCardBytes));
}

TEST_CASE("a batch is read when the card comes to it, so its memory may not go before") {
  const Finisher finisher({.dtype = DType::uint8, .memory_format = MemoryFormat::channels_last}, 3, 2, 2);
  CardFinisher card(open_host_card(0, kCardBytes), finisher);
  std::vector<uint8_t> images(12, 1);
  std::vector<uint8_t> tensor(12, 9);
  card.finish(images.data(), 1, tensor.data());
  std::fill(images.begin(), images.end(), 2);  // as a slot that was given back too early
  CHECK(tensor == std::vector<uint8_t>(12, 9));
  card.wait();
  CHECK(tensor == std::vector<uint8_t>(12, 2));
}

TEST_CASE("memory is bounded, whatever the batch") {
  const Finisher finisher({.dtype = DType::float32}, 3, 32, 40);
  const CardFinisher usual(open_host_card(0, kCardBytes), finisher);
  CHECK(usual.memory_bytes() <= CardFinisherOptions{}.memory_bytes);
  CHECK(usual.memory_bytes() > CardFinisherOptions{}.memory_bytes * 9 / 10);
  // An image at least.
  const CardFinisher small(open_host_card(0, kCardBytes), finisher, nullptr, {.memory_bytes = 0});
  CHECK(small.memory_bytes() >= 3 * 32 * 40);
  CHECK(small.memory_bytes() < 3 * 32 * 40 + 8192);
  // And all of it goes back.
  const std::shared_ptr<Card> card = open_host_card(0, size_t{9} << 20);
  for (int i = 0; i < 3; ++i) CHECK_NOTHROW(CardFinisher(card, finisher));
}

TEST_CASE("what fails says so by name") {
  const Finisher finisher({.dtype = DType::float16}, 3, 8, 8);
  const auto faults = std::make_shared<CardFaults>();
  const auto card = std::make_shared<FaultyCard>(open_host_card(0, kCardBytes), faults);
  std::vector<uint8_t> images(size_t{40} * 3 * 8 * 8);
  std::vector<uint16_t> tensor(images.size());
  SUBCASE("too little memory") {
    faults->most_bytes = 1000;
    CHECK_THROWS_WITH_AS(CardFinisher(card, finisher), doctest::Contains("short of memory"), CardError);
  }
  SUBCASE("any call, from the first to the wait") {
    // Upload of what is constant, and its wait; upload and kernel of three pieces, of 17 at most; and the wait.
    for (int call = 0; call < 9; ++call) {
      CAPTURE(call);
      faults->after(call, CardFault::failed);
      const auto all = [&] {
        CardFinisher finishing(card, finisher, nullptr, {.memory_bytes = 8000});
        finishing.finish(images.data(), 40, tensor.data());
        finishing.wait();
      };
      CHECK_THROWS_WITH_AS(all(), doctest::Contains("card 0 (this CPU): a fault of the test"), CardError);
    }
    faults->after(9, CardFault::failed);
    CardFinisher finishing(card, finisher, nullptr, {.memory_bytes = 8000});
    finishing.finish(images.data(), 40, tensor.data());
    CHECK_NOTHROW(finishing.wait());
    faults->after(1'000'000, CardFault::failed);
  }
  SUBCASE("a tensor that is not aligned") {
    CardFinisher finishing(card, finisher);
    CHECK_THROWS_WITH_AS(finishing.finish(images.data(), 1, reinterpret_cast<std::byte*>(tensor.data()) + 1),
                         doctest::Contains("not aligned"), Error);
  }
  SUBCASE("images of one channel") {
    CHECK_THROWS_WITH_AS(CardFinisher(card, Finisher({.dtype = DType::float32}, 1, 8, 8)),
                         doctest::Contains("three channels"), Error);
  }
}
