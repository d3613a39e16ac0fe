// Who is shown which card's memory, who says that it is read, and when it is let go of.
#include "runtime/receiver/card_shares.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "runtime/base/error.h"
#include "tests/support/fake_port_messenger.h"

namespace penstock {
namespace {

struct Desk {
  Desk() {
    out.look = [](int, const ClientMessage& message, int fd) {
      struct stat file {};
      const bool open = fd >= 0 && ::fstat(fd, &file) == 0 && file.st_size == 4096;
      const auto* const share = std::get_if<ClientShare>(&message);
      CHECK(open == (share != nullptr && !share->linked));
    };
  }
  UniqueFd descriptor() const { return duplicate(memory.fd()); }
  template <class T, class M>
  static std::vector<std::pair<int, T>> take(std::vector<std::pair<int, M>>& messages) {
    std::vector<std::pair<int, T>> found;
    for (const auto& [to, message] : std::exchange(messages, {})) found.emplace_back(to, std::get<T>(message));
    return found;
  }
  auto shown() { return take<ClientShare>(out.for_clients); }
  auto gone() { return take<ClientShareGone>(out.for_clients); }
  auto uses() { return take<ShareUsed>(out.for_ranks); }
  auto backs() { return take<PieceBack>(out.for_ranks); }

  SharedMemory memory = SharedMemory::create("penstock-test", 4096);
  FakePortMessenger out;
  CardShares shares{out};
};

const ChunkPiece kPiece{2, 77, 1024, 3072};

TEST_CASE("clients that read images on cards are shown each memory once, whoever comes first") {
  Desk desk;
  desk.shares.read_by(5, 50);
  desk.shares.offered(3, {2, 4096}, desk.descriptor());
  auto shown = desk.shown();
  REQUIRE(shown.size() == 1);
  CHECK(shown[0].first == 5);
  CHECK(shown[0].second.bytes == 4096);
  desk.shares.read_by(5, 50);
  CHECK(desk.shown().empty());
  desk.shares.read_by(6, 60);
  desk.shares.offered(4, {0, 4096}, desk.descriptor());
  shown = desk.shown();
  REQUIRE(shown.size() == 3);
  CHECK(shown[0].first == 6);
  CHECK(shown[1].second.share == shown[2].second.share);
  CHECK(shown[0].second.share != shown[1].second.share);
}

TEST_CASE("a loader hears who reads its memory, once, and who does no more") {
  Desk desk;
  desk.shares.read_by(5, 50);
  desk.shares.offered(3, {2, 4096}, desk.descriptor());
  const int32_t share = desk.shown().at(0).second.share;
  CHECK_FALSE(desk.shares.keep(5, 3, kPiece, false));
  desk.shares.used(6, {share, true});      // it was not shown to that one
  desk.shares.used(5, {share + 1, true});  // nor is there such a one
  CHECK(desk.uses().empty());
  for (int i = 0; i < 2; ++i) desk.shares.used(5, {share, true});
  auto uses = desk.uses();
  REQUIRE(uses.size() == 1);
  CHECK(uses[0].first == 3);
  CHECK(uses[0].second.card == 2);
  CHECK(uses[0].second.card_reader == 5);
  CHECK(uses[0].second.used);
  CHECK(desk.shares.keep(5, 3, kPiece, false) == share);
  CHECK_FALSE(desk.shares.keep(6, 3, kPiece, false));
  CHECK_THROWS_WITH_AS(desk.shares.keep(5, 4, kPiece, false), doctest::Contains("does not share"), Error);
  bool gone = false;
  SUBCASE("because it says so") { desk.shares.used(5, {share, false}); }
  SUBCASE("because it is gone") {
    desk.shares.connection_gone(5);
    gone = true;
  }
  uses = desk.uses();
  REQUIRE(uses.size() == 1);
  CHECK_FALSE(uses[0].second.used);
  CHECK_FALSE(desk.shares.keep(5, 3, kPiece, false));
  desk.shares.give_back(3, kPiece, share);
  CHECK(desk.backs().at(0).second.id == 77);
  // Images that are nowhere else are its own all the same, while it is there.
  CHECK(desk.shares.keep(5, 3, kPiece, true).has_value() != gone);
}

TEST_CASE("memory of a lost loader is let go of behind the last batch that has images there") {
  Desk desk;
  desk.shares.read_by(5, 50);
  desk.shares.offered(3, {2, 4096}, desk.descriptor());
  const int32_t share = desk.shown().at(0).second.share;
  desk.shares.used(5, {share, true});
  for (int i = 0; i < 2; ++i) CHECK(desk.shares.keep(5, 3, kPiece, false) == share);
  desk.shares.loader_lost(3);
  CHECK_FALSE(desk.shares.keep(5, 3, kPiece, false));
  desk.shares.read_by(6, 60);
  CHECK(desk.out.for_clients.empty());
  desk.shares.give_back(3, kPiece, share);
  CHECK(desk.out.for_clients.empty());
  desk.shares.give_back(3, kPiece, share);
  const auto gone = desk.gone();
  REQUIRE(gone.size() == 2);
  CHECK(gone[0].second.share == share);
  desk.shares.give_back(3, kPiece, share);  // of a share that is forgotten: no harm
  SUBCASE("one with nothing out, at once") {
    desk.shares.offered(4, {0, 4096}, desk.descriptor());
    CHECK(desk.shown().size() == 2);
    desk.shares.loader_lost(4);
    CHECK(desk.gone().size() == 2);
  }
}

TEST_CASE("a loader that offers a card's memory again means another one") {
  Desk desk;
  desk.shares.read_by(5, 50);
  desk.shares.offered(3, {2, 4096}, desk.descriptor());
  const int32_t before = desk.shown().at(0).second.share;
  desk.shares.used(5, {before, true});
  desk.out.for_ranks.clear();
  desk.shares.offered(3, {2, 4096}, desk.descriptor());
  REQUIRE(desk.out.for_clients.size() == 2);
  CHECK(std::get<ClientShareGone>(desk.out.for_clients[0].second).share == before);
  CHECK(std::get<ClientShare>(desk.out.for_clients[1].second).share != before);
  CHECK_FALSE(desk.shares.keep(5, 3, kPiece, false));
}

TEST_CASE("an offer without memory, and images outside of it, are no offer and no images") {
  Desk desk;
  CHECK_THROWS_WITH_AS(desk.shares.offered(3, {2, 4096}, UniqueFd()), doctest::Contains("without a descriptor"), Error);
  CHECK_THROWS_AS(desk.shares.offered(3, {-1, 4096}, desk.descriptor()), Error);
  desk.shares.offered(3, {2, 4096}, desk.descriptor());
  for (const auto& [at, bytes] : {std::pair<uint64_t, uint64_t>{1, 4096}, {4097, 0}, {~0ULL, 2}, {2, ~0ULL}}) {
    CHECK_THROWS_WITH_AS(desk.shares.keep(5, 3, {2, 1, at, bytes}, false), doctest::Contains("outside the memory"), Error);
  }
}

TEST_CASE("memory whose descriptor cannot be passed on costs speed alone") {
  Desk desk;
  desk.shares.read_by(5, 50);
  desk.out.look = [](int, const ClientMessage&, int) { throw Error(ErrorKind::runtime, "too many open files"); };
  desk.shares.offered(3, {2, 4096}, desk.descriptor());
  CHECK(desk.out.for_clients.empty());
  REQUIRE(desk.out.notices.size() == 1);
  CHECK(desk.out.notices[0].find("images go by the host: too many open files") != std::string::npos);
  CHECK_THROWS_AS(desk.shares.offered(4, {2, 4096, true}, UniqueFd()), Error);
}

TEST_CASE("linked memory: who asks whom for what, and its end with the loader") {
  Desk desk;
  desk.shares.read_by(5, 50);
  CHECK_THROWS_AS(desk.shares.offered(3, {2, 4096, true}, desk.descriptor()), Error);
  desk.shares.offered(3, {2, 4096, true}, UniqueFd());
  const auto shown = desk.shown();
  REQUIRE(shown.size() == 1);
  CHECK(shown[0].second.linked);
  const int32_t share = shown[0].second.share;

  desk.shares.asked(6, ClientLinkAsked{share, "a card"});      // it was not shown to that one
  desk.shares.asked(5, ClientLinkAsked{share + 1, "a card"});  // nor is there such a one
  CHECK(desk.out.for_ranks.empty());
  desk.shares.asked(5, ClientLinkAsked{share, "a card"});
  const auto asked = desk.take<LinkAsked>(desk.out.for_ranks);
  REQUIRE(asked.size() == 1);
  CHECK(asked[0].first == 3);
  CHECK(std::tuple(asked[0].second.card, asked[0].second.card_reader, asked[0].second.identity) ==
        std::tuple(2, 5, std::string("a card")));
  desk.shares.opened(4, {2, 5, "id", ""});  // of another loader
  desk.shares.opened(3, {2, 6, "id", ""});  // for nobody
  CHECK(desk.out.for_clients.empty());
  desk.shares.opened(3, {2, 5, "id", ""});
  const auto opened = desk.take<ClientLinkOpened>(desk.out.for_clients);
  REQUIRE(opened.size() == 1);
  CHECK(std::tuple(opened[0].first, opened[0].second.share, opened[0].second.id) == std::tuple(5, share, std::string("id")));

  // Images that are nowhere else are its own only while it has the link.
  CHECK_FALSE(desk.shares.keep(5, 3, kPiece, true));
  CHECK(desk.shares.link_ended(3, kPiece));
  desk.shares.used(5, {share, true});
  CHECK(desk.uses().size() == 1);
  CHECK(desk.shares.keep(5, 3, kPiece, true) == share);
  desk.shares.asked(5, ClientPiecesAsked{share, {{1024, 100}}});
  CHECK(desk.take<PiecesAsked>(desk.out.for_ranks).at(0).second.runs == std::vector<CardRun>{{1024, 100}});

  CHECK(desk.shares.readable(share));
  SUBCASE("lost") { desk.shares.loader_lost(3); }
  SUBCASE("given up") { desk.shares.links_lost(3); }
  CHECK(desk.gone().size() == 1);  // at once: nobody can read there any more
  CHECK_FALSE(desk.shares.readable(share));
  CHECK_FALSE(desk.shares.link_ended(3, kPiece));  // another loader makes them
  desk.shares.asked(5, ClientPiecesAsked{share, {{1024, 100}}});
  CHECK(desk.out.for_ranks.empty());
  desk.shares.give_back(3, kPiece, share);
  CHECK(desk.out.for_clients.empty());
}

TEST_CASE("a loader that is given up, and may live: what it shares by descriptors stays") {
  Desk desk;
  desk.shares.read_by(5, 50);
  desk.shares.offered(3, {2, 4096}, desk.descriptor());
  const int32_t share = desk.shown().at(0).second.share;
  desk.shares.links_lost(3);
  CHECK(desk.out.for_clients.empty());
  CHECK(desk.shares.readable(share));
}

TEST_CASE("a client that says goodbye has nothing any more, also of what it was given and has not read") {
  Desk desk;
  desk.shares.read_by(5, 0);
  desk.shares.offered(3, {2, 4096}, desk.descriptor());
  const int32_t share = desk.shown().at(0).second.share;
  desk.shares.used(5, {share, true});
  CHECK(desk.shares.keep(5, 3, kPiece, false) == share);
  desk.out.for_ranks.clear();
  desk.shares.connection_gone(5);  // which a goodbye is
  CHECK(desk.uses().size() == 1);
  desk.shares.read_till_end(5, 3, kPiece, share);
  CHECK(desk.backs().size() == 1);
}

TEST_CASE("what a program held when it hung up goes back when it has ended") {
  Desk desk;
  desk.shares.read_by(5, 50);
  desk.shares.offered(3, {2, 4096}, desk.descriptor());
  const int32_t share = desk.shown().at(0).second.share;
  desk.shares.used(5, {share, true});
  for (int i = 0; i < 2; ++i) CHECK(desk.shares.keep(5, 3, kPiece, false) == share);
  desk.out.for_ranks.clear();
  desk.shares.read_till_end(5, 3, kPiece, share);
  desk.shares.connection_gone(5);
  CHECK(desk.uses().size() == 1);  // and nothing went back
  desk.shares.program_ended(60);
  CHECK(desk.out.for_ranks.empty());
  desk.shares.give_back(3, kPiece, share);  // what it had not been given yet
  CHECK(desk.backs().size() == 1);
  desk.shares.program_ended(50);
  CHECK(desk.backs().size() == 1);
  desk.shares.program_ended(50);
  CHECK(desk.out.for_ranks.empty());
}

}  // namespace
}  // namespace penstock
