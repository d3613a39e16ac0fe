// Pieces of a card's memory that are lent to other processes: who may write when. tests/gpu/cuda/share_between_processes_test
// has the processes.
#include <doctest/doctest.h>

#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <vector>

#include "runtime/gpu/card_finisher.h"
#include "runtime/gpu/card_pieces.h"
#include "runtime/gpu/played/host_card.h"
#include "tests/support/faulty_card.h"

namespace {

using namespace penstock;

constexpr size_t kCardBytes = size_t{64} << 20;

}  // namespace

TEST_CASE("a piece that was lent is free again when the one that it was lent to says so, once") {
  const auto card = open_host_card(0, kCardBytes);
  CardPieces pieces(*card, 4096);
  const auto first = pieces.take(3000);
  REQUIRE(first);
  CHECK_FALSE(pieces.take(3000));  // no room
  CHECK(pieces.lend(first->id, 1));
  CHECK_FALSE(pieces.lend(first->id, 2));  // another one has it
  SUBCASE("not at somebody else's word, nor at its filler's") {
    pieces.give_back(first->id, 2);
    pieces.drop(first->id);
    CHECK_FALSE(pieces.take(3000));
  }
  SUBCASE("nor at the word on a piece that lay in the same place before") {
    pieces.give_back(first->id, 1);
    const auto second = pieces.take(3000);
    REQUIRE(second);
    CHECK(second->at == first->at);
    CHECK(pieces.lend(second->id, 1));
    pieces.give_back(first->id, 1);
    CHECK_FALSE(pieces.take(3000));
    pieces.give_back(second->id, 1);
    CHECK(pieces.take(3000));
  }
  CHECK(pieces.figures().refused >= 2);
}

TEST_CASE("one consumer cannot have it all, however slowly it reads") {
  const auto card = open_host_card(0, kCardBytes);
  CardPieces pieces(*card, 64 * 1024);
  const size_t all = pieces.bytes() / 1024;
  const auto most = [&](CardPieces::Consumer whose) {
    size_t taken = 0;
    while (const auto piece = pieces.take(1024, whose)) {
      if (taken++ % 2 == 0) CHECK(pieces.lend(piece->id, whose));  // filled or lent: it counts as its
    }
    return taken;
  };
  // Four times what is left: 4/5 of it, then of the rest as much as leaves a quarter of that.
  const size_t first = most(1);
  CHECK(first == all * 4 / 5);
  CHECK_FALSE(pieces.take(1024, 1));
  const size_t second = most(2);
  CHECK((second >= 1 && 4 * (all - first - second) + 4 > second));
  // With both at it from the beginning, each has as much.
  for (const CardPieces::Consumer one : {1, 2}) pieces.forget(one);
  CardPieces fair(*card, 64 * 1024);
  size_t taken[2] = {0, 0};
  for (bool any = true; any;) {
    any = false;
    for (const int one : {0, 1}) {
      if (!fair.take(1024, one)) continue;
      ++taken[one];
      any = true;
    }
  }
  CHECK(taken[0] + taken[1] >= all * 8 / 10);
  CHECK((taken[0] <= taken[1] + 1 && taken[1] <= taken[0] + 1));
}

TEST_CASE("a consumer that dies gives back what it had, and nothing that is still being written") {
  const auto card = open_host_card(0, kCardBytes);
  CardPieces pieces(*card, 4096);
  const auto read = pieces.take(1024);
  const auto others = pieces.take(1024);
  const auto filled = pieces.take(2048);
  REQUIRE((read && others && filled));
  CHECK(pieces.lend(read->id, 1));
  CHECK(pieces.lend(others->id, 2));
  pieces.forget(1);
  const auto again = pieces.take(1024);
  REQUIRE(again);
  CHECK(again->at == read->at);
  CHECK_FALSE(pieces.take(1));              // the other two are not free
  CHECK_FALSE(pieces.lend(filled->id, 1));  // it was for the dead one: free, as it is written now
  CHECK(pieces.take(2048));
  CHECK(pieces.figures().out == 3);
}

TEST_CASE("a consumer that is left keeps what it had, and gets no more") {
  const auto card = open_host_card(0, kCardBytes);
  CardPieces pieces(*card, 4096);
  const auto read = pieces.take(1024);
  const auto filled = pieces.take(2048);
  REQUIRE((read && filled));
  CHECK(pieces.lend(read->id, 1));
  pieces.leave(1);
  CHECK_FALSE(pieces.lend(filled->id, 1));
  CHECK(pieces.figures().out == 1);
  const auto next = pieces.take(1024);
  REQUIRE(next);
  CHECK(next->at != read->at);
  pieces.give_back(read->id, 1);  // it says so all the same
  CHECK(pieces.figures().out == 1);
}

TEST_CASE("a card that shares no memory says so, and one that is short of it") {
  const auto faults = std::make_shared<CardFaults>();
  FaultyCard card(open_host_card(0, 1 << 20), faults);
  CHECK_THROWS_WITH_AS(CardPieces(card, 2 << 20), doctest::Contains("out of memory"), CardError);
  for (int i = 0; i < 3; ++i) CHECK_NOTHROW(CardPieces(card, 1 << 20));  // and all of it goes back
  faults->most_shared_bytes = 0;
  CHECK_THROWS_WITH_AS(CardPieces(card, 1000), doctest::Contains("shares no memory"), Error);
}

TEST_CASE("images outside of the shared memory are not looked at") {
  const auto card = open_host_card(0, kCardBytes);
  const auto share = card->share(1000);
  CHECK(images_in(*share, 0, 1000) == reinterpret_cast<const uint8_t*>(share->data()));
  CHECK(images_in(*share, 1000, 0) == reinterpret_cast<const uint8_t*>(share->data()) + 1000);
  for (const auto& [at, bytes] : {std::pair<uint64_t, uint64_t>{1, 1000}, {1001, 0}, {~0ULL, 2}, {2, ~0ULL}}) {
    CHECK_THROWS_WITH_AS(images_in(*share, at, bytes), doctest::Contains("outside the memory"), Error);
  }
  // Nor is a descriptor of less than was said.
  CHECK_THROWS_AS(card->open_share(UniqueFd(::dup(share->fd())), 100'000), Error);
}

TEST_CASE("whatever is taken, lent and given back, no two pieces meet, and in the end all is free") {
  const auto seed = std::random_device{}();
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  const auto card = open_host_card(0, kCardBytes);
  constexpr size_t kBytes = 1 << 16;
  CardPieces pieces(*card, kBytes);
  struct Known {
    CardPiece piece;
    int32_t lent_to = -1;
  };
  std::vector<Known> known;
  int32_t dead = 0;
  for (int i = 0; i < 20'000; ++i) {
    const auto any = [&] { return random() % known.size(); };
    switch (random() % 4) {
      case 0:
        if (const auto piece = pieces.take(1 + random() % (kBytes / 8))) known.push_back({*piece});
        break;
      case 1:
        if (known.empty()) break;
        if (Known& one = known[any()]; one.lent_to < 0) {
          one.lent_to = dead + static_cast<int32_t>(random() % 3);
          CHECK(pieces.lend(one.piece.id, one.lent_to));
        }
        break;
      case 2: {
        if (known.empty()) break;
        const size_t at = any();
        const auto from = dead + static_cast<int32_t>(random() % 3);
        pieces.give_back(known[at].piece.id, from);
        if (known[at].lent_to == from) known.erase(known.begin() + static_cast<std::ptrdiff_t>(at));
        break;
      }
      default:
        if (random() % 100 != 0) break;
        pieces.forget(dead);
        std::erase_if(known, [&](const Known& one) { return one.lent_to == dead; });
        ++dead;
    }
    std::map<uint64_t, uint64_t> places;
    for (const Known& one : known) places[one.piece.at] = one.piece.at + one.piece.bytes;
    REQUIRE(places.size() == known.size());
    uint64_t end = 0;
    for (const auto& [from, to] : places) {
      REQUIRE(from >= end);
      end = to;
    }
    REQUIRE(end <= pieces.bytes());
  }
  for (const Known& one : known) {
    pieces.drop(one.piece.id);
    if (one.lent_to >= 0) pieces.give_back(one.piece.id, one.lent_to);
  }
  CHECK(pieces.figures().out == 0);
  CHECK(pieces.take(kBytes));
}
