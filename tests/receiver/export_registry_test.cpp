// Who is shown which GPU's memory, who says that it is read, and when it is let go of.
#include "runtime/receiver/export_registry.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "runtime/base/error.h"
#include "tests/support/fake_receiver_messenger.h"

namespace penstock {
namespace {

struct Desk {
  Desk() {
    out.look = [](int, const ClientMessage& message, int fd) {
      struct stat file {};
      const bool open = fd >= 0 && ::fstat(fd, &file) == 0 && file.st_size == 4096;
      const auto* const exported = std::get_if<ClientExport>(&message);
      CHECK(open == (exported != nullptr && !exported->linked));
    };
  }
  UniqueFd descriptor() const { return duplicate(memory.fd()); }
  template <class T, class M>
  static std::vector<std::pair<int, T>> take(std::vector<std::pair<int, M>>& messages) {
    std::vector<std::pair<int, T>> found;
    for (const auto& [to, message] : std::exchange(messages, {})) found.emplace_back(to, std::get<T>(message));
    return found;
  }
  auto shown() { return take<ClientExport>(out.for_clients); }
  auto gone() { return take<ClientExportGone>(out.for_clients); }
  auto uses() { return take<ExportUsed>(out.for_ranks); }
  auto backs() { return take<BufferRangeReturned>(out.for_ranks); }

  SharedMemory memory = SharedMemory::create("penstock-test", 4096);
  FakeReceiverMessenger out;
  ExportRegistry exports{out};
};

const ChunkBufferRange kRange{2, 77, 1024, 3072};

TEST_CASE("clients that read images on GPUs are shown each memory once, whoever comes first") {
  Desk desk;
  desk.exports.read_by(5, 50);
  desk.exports.offered(3, {2, 4096}, desk.descriptor());
  auto shown = desk.shown();
  REQUIRE(shown.size() == 1);
  CHECK(shown[0].first == 5);
  CHECK(shown[0].second.bytes == 4096);
  desk.exports.read_by(5, 50);
  CHECK(desk.shown().empty());
  desk.exports.read_by(6, 60);
  desk.exports.offered(4, {0, 4096}, desk.descriptor());
  shown = desk.shown();
  REQUIRE(shown.size() == 3);
  CHECK(shown[0].first == 6);
  CHECK(shown[1].second.exported == shown[2].second.exported);
  CHECK(shown[0].second.exported != shown[1].second.exported);
}

TEST_CASE("a loader hears who reads its memory, once, and who does no more") {
  Desk desk;
  desk.exports.read_by(5, 50);
  desk.exports.offered(3, {2, 4096}, desk.descriptor());
  const int32_t exported = desk.shown().at(0).second.exported;
  CHECK_FALSE(desk.exports.keep(5, 3, kRange, false));
  desk.exports.used(6, {exported, true});      // it was not shown to that one
  desk.exports.used(5, {exported + 1, true});  // nor is there such a one
  CHECK(desk.uses().empty());
  for (int i = 0; i < 2; ++i) desk.exports.used(5, {exported, true});
  auto uses = desk.uses();
  REQUIRE(uses.size() == 1);
  CHECK(uses[0].first == 3);
  CHECK(uses[0].second.gpu == 2);
  CHECK(uses[0].second.gpu_reader == 5);
  CHECK(uses[0].second.used);
  CHECK(desk.exports.keep(5, 3, kRange, false) == exported);
  CHECK_FALSE(desk.exports.keep(6, 3, kRange, false));
  CHECK_THROWS_WITH_AS(desk.exports.keep(5, 4, kRange, false), doctest::Contains("does not export"), Error);
  bool gone = false;
  SUBCASE("because it says so") {
    desk.exports.used(5, {exported, false});
  }
  SUBCASE("because it is gone") {
    desk.exports.connection_gone(5);
    gone = true;
  }
  uses = desk.uses();
  REQUIRE(uses.size() == 1);
  CHECK_FALSE(uses[0].second.used);
  CHECK_FALSE(desk.exports.keep(5, 3, kRange, false));
  desk.exports.give_back(3, kRange, exported);
  CHECK(desk.backs().at(0).second.id == 77);
  // Images that are nowhere else are its own all the same, while it is there.
  CHECK(desk.exports.keep(5, 3, kRange, true).has_value() != gone);
}

TEST_CASE("memory of a lost loader is let go of behind the last batch that has images there") {
  Desk desk;
  desk.exports.read_by(5, 50);
  desk.exports.offered(3, {2, 4096}, desk.descriptor());
  const int32_t exported = desk.shown().at(0).second.exported;
  desk.exports.used(5, {exported, true});
  for (int i = 0; i < 2; ++i) CHECK(desk.exports.keep(5, 3, kRange, false) == exported);
  desk.exports.loader_lost(3);
  CHECK_FALSE(desk.exports.keep(5, 3, kRange, false));
  desk.exports.read_by(6, 60);
  CHECK(desk.out.for_clients.empty());
  desk.exports.give_back(3, kRange, exported);
  CHECK(desk.out.for_clients.empty());
  desk.exports.give_back(3, kRange, exported);
  const auto gone = desk.gone();
  REQUIRE(gone.size() == 2);
  CHECK(gone[0].second.exported == exported);
  desk.exports.give_back(3, kRange, exported);  // of exported memory that is forgotten: no harm
  SUBCASE("one with nothing out, at once") {
    desk.exports.offered(4, {0, 4096}, desk.descriptor());
    CHECK(desk.shown().size() == 2);
    desk.exports.loader_lost(4);
    CHECK(desk.gone().size() == 2);
  }
}

TEST_CASE("a loader that offers a GPU's memory again means another one") {
  Desk desk;
  desk.exports.read_by(5, 50);
  desk.exports.offered(3, {2, 4096}, desk.descriptor());
  const int32_t before = desk.shown().at(0).second.exported;
  desk.exports.used(5, {before, true});
  desk.out.for_ranks.clear();
  desk.exports.offered(3, {2, 4096}, desk.descriptor());
  REQUIRE(desk.out.for_clients.size() == 2);
  CHECK(std::get<ClientExportGone>(desk.out.for_clients[0].second).exported == before);
  CHECK(std::get<ClientExport>(desk.out.for_clients[1].second).exported != before);
  CHECK_FALSE(desk.exports.keep(5, 3, kRange, false));
}

TEST_CASE("an offer without memory, and images outside of it, are no offer and no images") {
  Desk desk;
  CHECK_THROWS_WITH_AS(desk.exports.offered(3, {2, 4096}, UniqueFd()), doctest::Contains("without a descriptor"),
                       Error);
  CHECK_THROWS_AS(desk.exports.offered(3, {-1, 4096}, desk.descriptor()), Error);
  desk.exports.offered(3, {2, 4096}, desk.descriptor());
  for (const auto& [at, bytes] : {std::pair<uint64_t, uint64_t>{1, 4096}, {4097, 0}, {~0ULL, 2}, {2, ~0ULL}}) {
    CHECK_THROWS_WITH_AS(desk.exports.keep(5, 3, {2, 1, at, bytes}, false), doctest::Contains("outside the memory"),
                         Error);
  }
}

TEST_CASE("memory whose descriptor cannot be passed on costs speed alone") {
  Desk desk;
  desk.exports.read_by(5, 50);
  desk.out.look = [](int, const ClientMessage&, int) { throw Error(ErrorKind::runtime, "too many open files"); };
  desk.exports.offered(3, {2, 4096}, desk.descriptor());
  CHECK(desk.out.for_clients.empty());
  REQUIRE(desk.out.notices.size() == 1);
  CHECK(desk.out.notices[0].find("images go by the host: too many open files") != std::string::npos);
  CHECK_THROWS_AS(desk.exports.offered(4, {2, 4096, true}, UniqueFd()), Error);
}

TEST_CASE("linked memory: who asks whom for what, and its end with the loader") {
  Desk desk;
  desk.exports.read_by(5, 50);
  CHECK_THROWS_AS(desk.exports.offered(3, {2, 4096, true}, desk.descriptor()), Error);
  desk.exports.offered(3, {2, 4096, true}, UniqueFd());
  const auto shown = desk.shown();
  REQUIRE(shown.size() == 1);
  CHECK(shown[0].second.linked);
  const int32_t exported = shown[0].second.exported;

  desk.exports.asked(6, ClientLinkAsked{exported, "a GPU"});      // it was not shown to that one
  desk.exports.asked(5, ClientLinkAsked{exported + 1, "a GPU"});  // nor is there such a one
  CHECK(desk.out.for_ranks.empty());
  desk.exports.asked(5, ClientLinkAsked{exported, "a GPU"});
  const auto asked = desk.take<LinkAsked>(desk.out.for_ranks);
  REQUIRE(asked.size() == 1);
  CHECK(asked[0].first == 3);
  CHECK(std::tuple(asked[0].second.gpu, asked[0].second.gpu_reader, asked[0].second.identity) ==
        std::tuple(2, 5, std::string("a GPU")));
  desk.exports.opened(4, {2, 5, "id", ""});  // of another loader
  desk.exports.opened(3, {2, 6, "id", ""});  // for nobody
  CHECK(desk.out.for_clients.empty());
  desk.exports.opened(3, {2, 5, "id", ""});
  const auto opened = desk.take<ClientLinkOpened>(desk.out.for_clients);
  REQUIRE(opened.size() == 1);
  CHECK(std::tuple(opened[0].first, opened[0].second.exported, opened[0].second.id) ==
        std::tuple(5, exported, std::string("id")));

  // Images that are nowhere else are its own only while it has the link.
  CHECK_FALSE(desk.exports.keep(5, 3, kRange, true));
  CHECK(desk.exports.link_ended(3, kRange));
  desk.exports.used(5, {exported, true});
  CHECK(desk.uses().size() == 1);
  CHECK(desk.exports.keep(5, 3, kRange, true) == exported);
  desk.exports.asked(5, ClientBufferRangesAsked{exported, {{1024, 100}}});
  CHECK(desk.take<BufferRangesAsked>(desk.out.for_ranks).at(0).second.runs == std::vector<MemoryRange>{{1024, 100}});

  CHECK(desk.exports.readable(exported));
  SUBCASE("lost") {
    desk.exports.loader_lost(3);
  }
  SUBCASE("given up") {
    desk.exports.links_lost(3);
  }
  CHECK(desk.gone().size() == 1);  // at once: nobody can read there any more
  CHECK_FALSE(desk.exports.readable(exported));
  CHECK_FALSE(desk.exports.link_ended(3, kRange));  // another loader makes them
  desk.exports.asked(5, ClientBufferRangesAsked{exported, {{1024, 100}}});
  CHECK(desk.out.for_ranks.empty());
  desk.exports.give_back(3, kRange, exported);
  CHECK(desk.out.for_clients.empty());
}

TEST_CASE("a loader that is given up, and may live: what it exports by descriptors stays") {
  Desk desk;
  desk.exports.read_by(5, 50);
  desk.exports.offered(3, {2, 4096}, desk.descriptor());
  const int32_t exported = desk.shown().at(0).second.exported;
  desk.exports.links_lost(3);
  CHECK(desk.out.for_clients.empty());
  CHECK(desk.exports.readable(exported));
}

TEST_CASE("a client that says goodbye has nothing any more, also of what it was given and has not read") {
  Desk desk;
  desk.exports.read_by(5, 0);
  desk.exports.offered(3, {2, 4096}, desk.descriptor());
  const int32_t exported = desk.shown().at(0).second.exported;
  desk.exports.used(5, {exported, true});
  CHECK(desk.exports.keep(5, 3, kRange, false) == exported);
  desk.out.for_ranks.clear();
  desk.exports.connection_gone(5);  // which a goodbye is
  CHECK(desk.uses().size() == 1);
  desk.exports.read_till_end(5, 3, kRange, exported);
  CHECK(desk.backs().size() == 1);
}

TEST_CASE("what a program held when it hung up goes back when it has ended") {
  Desk desk;
  desk.exports.read_by(5, 50);
  desk.exports.offered(3, {2, 4096}, desk.descriptor());
  const int32_t exported = desk.shown().at(0).second.exported;
  desk.exports.used(5, {exported, true});
  for (int i = 0; i < 2; ++i) CHECK(desk.exports.keep(5, 3, kRange, false) == exported);
  desk.out.for_ranks.clear();
  desk.exports.read_till_end(5, 3, kRange, exported);
  desk.exports.connection_gone(5);
  CHECK(desk.uses().size() == 1);  // and nothing went back
  desk.exports.program_ended(60);
  CHECK(desk.out.for_ranks.empty());
  desk.exports.give_back(3, kRange, exported);  // what it had not been given yet
  CHECK(desk.backs().size() == 1);
  desk.exports.program_ended(50);
  CHECK(desk.backs().size() == 1);
  desk.exports.program_ended(50);
  CHECK(desk.out.for_ranks.empty());
}

}  // namespace
}  // namespace penstock
