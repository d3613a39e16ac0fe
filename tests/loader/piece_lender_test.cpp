// To whom a loader offers its cards' memory, whose chunks it shares there, and what becomes of pieces: without cards'
//   work,
// sockets or threads.
#include "runtime/loader/piece_lender.h"

#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/gpu/played/host_card.h"
#include "tests/support/link_states.h"

namespace penstock {
namespace {

constexpr PeerId kNear = 4;
constexpr PeerId kFar = 5;  // on another node

class Wire final : public Endpoint {
 public:
  Capabilities capabilities(PeerId peer) const override { return {"test", true, true, peer == kNear}; }
  void send(PeerId peer, Message message) override {
    const ControlMessage said = decode(message);
    if (const auto* offer = std::get_if<ShareOffered>(&said)) {
      CHECK(offer->linked);
      offers.emplace_back(peer, offer->card);
    } else {
      opened.push_back(std::get<LinkOpened>(said));
    }
  }
  void send_with(PeerId peer, Message message, int fd) override {
    const auto offer = std::get<ShareOffered>(decode(message));
    CHECK_FALSE(offer.linked);
    CHECK(SharedMemory::open(duplicate(fd), offer.bytes, SharedMemory::Access::read).size() == offer.bytes);
    offers.emplace_back(peer, offer.card);
  }
  void send_chunk(PeerId, Message, CellRef, size_t) override {}
  void release(PeerId, uint64_t) override {}
  bool peers_map_arenas() const noexcept override { return false; }
  void register_arena(const Arena&) override {}
  void forget_arena(uint32_t) override {}
  bool poll(Incoming&) override { return false; }
  void collect_fds(std::vector<pollfd>&) const override {}
  bool flush(Nanoseconds) override { return true; }

  std::vector<std::pair<PeerId, int32_t>> offers;
  std::vector<LinkOpened> opened;
};

// Three cards, of which the second shares nothing.
class Cards final : public Executor {
 public:
  Cards() {
    for (int i = 0; i < 3; ++i) {
      cards_.push_back(open_host_card(i, size_t{1} << 20));
      pieces_.push_back(i == 1 ? nullptr : std::make_unique<CardPieces>(*cards_.back(), 10'000));
    }
  }
  void submit(std::unique_ptr<ChunkWork>) override {}
  std::unique_ptr<ChunkWork> next_done() override { return nullptr; }
  int done_fd() const override { return -1; }
  std::unique_ptr<ChunkWork> withdraw(const LeaseKey&) override { return nullptr; }
  ExecutorFigures figures() const override { return {}; }
  CardPieces* pieces(size_t card) const noexcept override { return pieces_[card].get(); }
  Card& card(size_t number) const { return *cards_[number]; }
  int64_t out() const { return pieces_[0]->figures().out + pieces_[2]->figures().out; }

 private:
  std::vector<std::unique_ptr<Card>> cards_;
  std::vector<std::unique_ptr<CardPieces>> pieces_;
};

struct Desk {
  ChunkWork made_by(size_t card, PeerId port = kNear) {
    ChunkWork work;
    work.lease.port = port;
    work.shared = {card, cards.pieces(card)->take(1000, port).value()};
    return work;
  }

  explicit Desk(bool links = false)
      : lender(wire, cards, {.cards = 3, .links = links}, [this](const std::string& text) { notices.push_back(text); }) {}

  Wire wire;
  Cards cards;
  std::vector<std::string> notices;
  PieceLender lender;
};

TEST_CASE("a port of this node is offered what there is, once, when a program of its reads images on cards") {
  Desk desk;
  CHECK(desk.lender.cards_for(kNear, 0) == 0);
  CHECK(desk.lender.cards_for(kFar, 7) == 0);
  CHECK(desk.wire.offers.empty());
  for (int i = 0; i < 2; ++i) CHECK(desk.lender.cards_for(kNear, 7) == 0);
  CHECK(desk.wire.offers == std::vector<std::pair<PeerId, int32_t>>{{kNear, 0}, {kNear, 2}});
}

TEST_CASE("only a program that has a card's memory open gets chunks there") {
  Desk desk;
  (void)desk.lender.cards_for(kNear, 7);
  desk.lender.used(kNear, {2, 7, true});
  CHECK(desk.lender.cards_for(kNear, 7) == 0b100);
  CHECK(desk.lender.cards_for(kNear, 6) == 0);
  CHECK(desk.lender.cards_for(kNear, 8) == 0);
  desk.lender.used(kNear, {0, 7, true});
  CHECK(desk.lender.cards_for(kNear, 7) == 0b101);
  desk.lender.used(kNear, {2, 7, false});
  CHECK(desk.lender.cards_for(kNear, 7) == 0b001);
  for (const int32_t card : {-1, 1, 3, 64}) {
    CHECK_THROWS_WITH_AS(desk.lender.used(kNear, {card, 7, true}), doctest::Contains("which shares none"), Error);
    CHECK_THROWS_AS(desk.lender.back(kNear, {card, 1}), Error);
  }
}

TEST_CASE("a piece goes with its chunk, and comes back by its port's word, not by its death, as programs may live on") {
  Desk desk;
  const ChunkWork work = desk.made_by(2);
  const auto piece = desk.lender.lend(work);
  REQUIRE(piece);
  CHECK(std::tuple(piece->card, piece->id, piece->at, piece->bytes) ==
        std::tuple(2, work.shared->piece.id, work.shared->piece.at, uint64_t{1000}));
  desk.lender.drop(work);  // it is not the loader's any more
  CHECK(desk.cards.out() == 1);
  SUBCASE("its word") {
    desk.lender.back(kFar, {2, piece->id});
    CHECK(desk.cards.out() == 1);
    desk.lender.back(kNear, {2, piece->id});
  }
  SUBCASE("its death") {
    desk.lender.used(kNear, {2, 7, true});
    desk.lender.lost(kNear);
    CHECK(desk.lender.cards_for(kNear, 7) == 0);
    CHECK_FALSE(desk.lender.lend(desk.made_by(0)));  // of a chunk that was being made for it
    CHECK(desk.cards.out() == 1);
    return;
  }
  CHECK(desk.cards.out() == 0);
}

TEST_CASE("a chunk that is not sent leaves nothing behind, and one without a piece has none") {
  Desk desk;
  desk.lender.drop(desk.made_by(0));
  CHECK(desk.cards.out() == 0);
  CHECK_FALSE(desk.lender.lend(ChunkWork()));
  desk.lender.drop(ChunkWork());
}

TEST_CASE("where no descriptor gets to, memory is offered to be linked, and sent from when it is asked for") {
  Desk desk(true);
  CHECK(desk.lender.cards_for(kFar, 7) == 0);
  CHECK(desk.wire.offers == std::vector<std::pair<PeerId, int32_t>>{{kFar, 0}, {kFar, 2}});
  desk.lender.asked(kFar, LinkAsked{2, 7, "another card"});
  REQUIRE(desk.wire.opened.size() == 1);
  CHECK(std::tuple(desk.wire.opened[0].card, desk.wire.opened[0].card_reader, desk.wire.opened[0].problem) ==
        std::tuple(2, 7, std::string()));
  const std::unique_ptr<Card> theirs = open_host_card(9, size_t{1} << 20);
  auto theirs_link = theirs->link(desk.wire.opened[0].id, LinkEnd::receiver);
  REQUIRE(penstock_test::after_joining(*theirs_link) == LinkState::joined);
  CHECK(desk.lender.cards_for(kFar, 7) == 0);  // it has not said so
  desk.lender.used(kFar, {2, 7, true});
  CHECK(desk.lender.cards_for(kFar, 7) == 0b100);

  const ChunkWork work = desk.made_by(2, kFar);
  for (size_t i = 0; i < 1000; ++i) work.shared->piece.data[i] = static_cast<std::byte>(i);
  const auto piece = desk.lender.lend(work);
  REQUIRE(piece);
  const auto stream = theirs->stream();
  std::vector<std::byte> got(30);
  theirs_link->receive(got.data(), 10, *stream);
  theirs_link->receive(got.data() + 10, 20, *stream);
  desk.lender.asked(kFar, PiecesAsked{2, 7, {{piece->at + 500, 10}, {piece->at, 20}}});
  stream->wait(kSecond);
  for (size_t i = 0; i < 10; ++i) CHECK(got[i] == static_cast<std::byte>(500 + i));
  for (size_t i = 0; i < 20; ++i) CHECK(got[10 + i] == static_cast<std::byte>(i));
  for (const CardRun run : {CardRun{9990, 11}, CardRun{~uint64_t{0}, 2}, CardRun{10'001, 0}}) {
    const bool inside = run.at <= desk.cards.pieces(2)->bytes() && run.bytes <= desk.cards.pieces(2)->bytes() - run.at;
    if (!inside) CHECK_THROWS_WITH_AS(desk.lender.asked(kFar, PiecesAsked{2, 7, {run}}), doctest::Contains("outside the memory"), Error);
  }
  CHECK_THROWS_AS(desk.lender.asked(kFar, LinkAsked{1, 7, ""}), Error);
  CHECK_THROWS_AS(desk.lender.asked(kFar, PiecesAsked{3, 7, {}}), Error);

  SUBCASE("it says that it reads no more") {
    desk.lender.used(kFar, {2, 7, false});
    CHECK(desk.lender.cards_for(kFar, 7) == 0);
    desk.lender.asked(kFar, PiecesAsked{2, 7, {{0, 10}}});  // on its way then
    CHECK(desk.wire.opened.size() == 1);
  }
  SUBCASE("its link ends: it hears why, and gets images by the host") {
    desk.lender.asked(kFar, PiecesAsked{2, 7, std::vector<CardRun>(200, {0, 10'000})});  // more than a socket takes
    theirs_link.reset();
    penstock_test::wait_until([&] {
      (void)desk.lender.cards_for(kFar, 7);
      return desk.wire.opened.size() == 2;
    });
    REQUIRE(desk.wire.opened.size() == 2);
    CHECK(desk.wire.opened[1].id.empty());
    CHECK(desk.wire.opened[1].problem.find("the other end") != std::string::npos);
    CHECK(desk.lender.cards_for(kFar, 7) == 0);
    CHECK(desk.notices.size() == 1);
  }
  SUBCASE("its port dies") {
    desk.lender.lost(kFar);
    CHECK(desk.lender.cards_for(kFar, 7) == 0);
    CHECK(desk.cards.out() == 0);
  }
  desk.lender.end_links();
}

TEST_CASE("no link to the loader's own card, and none where there is no library for it") {
  Desk desk(true);
  (void)desk.lender.cards_for(kFar, 7);
  desk.lender.asked(kFar, LinkAsked{2, 7, desk.cards.card(2).identity()});
  REQUIRE(desk.wire.opened.size() == 1);
  CHECK(desk.wire.opened[0].id.empty());
  CHECK(desk.wire.opened[0].problem.find("is the trainer's own") != std::string::npos);
  desk.lender.asked(kFar, LinkAsked{2, 8, desk.cards.card(2).identity()});
  CHECK(desk.notices.size() == 1);  // people hear it once, programs each
  CHECK(desk.wire.opened.size() == 2);
}

}  // namespace
}  // namespace penstock
