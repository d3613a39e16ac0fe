// Who hears what when a job ends, well or badly: trainer 0's receiver, which decides, and another one.
#include "runtime/receiver/receiver_shutdown.h"

#include <doctest/doctest.h>

#include <optional>
#include <utility>
#include <vector>

#include "runtime/base/error.h"
#include "tests/support/fake_receiver_messenger.h"

namespace penstock {
namespace {

// One of two trainers' receivers, ranks 0 and 1; loaders are ranks 2 and 3.
struct Leaving {
  explicit Leaving(PeerId self, bool whole_job = true) {
    options.self = self;
    options.whole_job = whole_job;
    options.coordination.receivers = {0, 1};
    options.coordination.loaders = {2, 3};
    end.emplace(options, out, [] { return std::string("{\"role\":\"trainer\"}"); });
    end->on_goodbye([this](const Goodbye&) { ++goodbyes; });
  }
  // Who was sent a message of this kind since the last look.
  template <class T>
  std::vector<PeerId> told() {
    std::vector<PeerId> peers;
    std::erase_if(out.for_ranks, [&](const auto& item) {
      const bool wanted = std::holds_alternative<T>(item.second);
      if (wanted) peers.push_back(item.first);
      return wanted;
    });
    return peers;
  }

  bool silent() const { return out.for_ranks.empty() && out.for_coordinator.empty(); }

  ReceiverOptions options;
  FakeReceiverMessenger out;
  int goodbyes = 0;
  std::optional<ReceiverShutdown> end;
};

using Peers = std::vector<PeerId>;
const ReceiverDone kWell{true, "", 0, "{}"};

TEST_CASE("when both programs have ended well, loaders report, and then all leave") {
  Leaving zero(0);
  zero.end->finish(true, "", 0);
  zero.end->finish(false, "again", 1);  // once
  REQUIRE(zero.out.for_coordinator.size() == 1);
  CHECK(std::get<ReceiverDone>(zero.out.for_coordinator[0]).good);
  zero.out.for_coordinator.clear();
  zero.end->program_done(0, kWell, {2, 3}, 0);
  CHECK(zero.silent());
  zero.end->program_done(1, kWell, {2, 3}, 0);
  CHECK(zero.told<Leave>() == Peers{2, 3});
  CHECK(zero.end->leaving());
  zero.end->loader_report(2, {"{\"role\":\"loader\"}"});
  CHECK_FALSE(zero.end->ended());
  zero.end->loader_report(3, {"{\"role\":\"loader\"}"});
  CHECK(zero.end->ended());
  CHECK(zero.goodbyes == 1);
  CHECK(zero.end->goodbye().good);
  CHECK(zero.end->goodbye().all_alive);
  CHECK(zero.told<Goodbye>() == Peers{2, 3, 1});
  CHECK(zero.end->reports().size() == 4);
}

TEST_CASE("a loader that does not report, or is lost, is not waited for") {
  Leaving zero(0);
  for (const PeerId receiver : {0, 1}) zero.end->program_done(receiver, kWell, {2, 3}, 0);
  zero.end->loader_report(2, {"{}"});
  zero.end->tick(4 * kSecond);
  CHECK_FALSE(zero.end->ended());
  zero.end->tick(6 * kSecond);
  CHECK(zero.end->ended());
  CHECK(zero.end->goodbye().good);
  CHECK_FALSE(zero.end->goodbye().all_alive);
  Leaving lost(0);
  for (const PeerId receiver : {0, 1}) lost.end->program_done(receiver, kWell, {2}, 0);
  lost.end->peer_lost(2);
  CHECK(lost.end->ended());
  Leaving apart(0);  // everybody reports, and MPI_Finalize would wait for who is cut off from each other
  apart.end->mpi_cannot_end();
  for (const PeerId receiver : {0, 1}) apart.end->program_done(receiver, kWell, {2, 3}, 0);
  for (const PeerId loader : {2, 3}) apart.end->loader_report(loader, {"{}"});
  CHECK(apart.end->goodbye().good);
  CHECK_FALSE(apart.end->goodbye().all_alive);
}

TEST_CASE("the first failure is the job's, whoever it comes from") {
  Leaving zero(0);
  zero.end->program_done(1, {false, "trainer 1: the disk is full", 7, "{}"}, {2, 3}, 0);
  CHECK(zero.end->ended());
  zero.end->fail("lost a trainer", 5);
  CHECK(zero.goodbyes == 1);
  CHECK(zero.end->goodbye().reason == "trainer 1: the disk is full");
  CHECK(zero.end->goodbye().exit_code == 7);
  CHECK(zero.told<Goodbye>() == Peers{2, 3, 1});
}

TEST_CASE("another receiver tells trainer 0's, and has ended when that says so") {
  Leaving one(1);
  CHECK_FALSE(one.end->decides());
  one.end->fail("trainer 1: the disk is full", 7);
  const auto& done = std::get<ReceiverDone>(one.out.for_coordinator.at(0));
  CHECK(one.out.for_ranks.empty());
  CHECK(done.exit_code == 7);
  CHECK(done.report_json == "{\"role\":\"trainer\"}");
  CHECK_FALSE(one.end->ended());
  one.end->received_goodbye({false, 7, "trainer 1: the disk is full", true});
  CHECK(one.end->ended());
  CHECK(one.goodbyes == 1);
  CHECK(one.end->reports().empty());
}

TEST_CASE("the end of serving is passed on by trainer 0's receiver, once") {
  Leaving zero(0);
  for (int i = 0; i < 2; ++i) zero.end->serving_ends({"no program for 60 s"});
  CHECK(zero.end->serving_ending());
  CHECK(zero.told<EndServing>() == Peers{1});
  CHECK(zero.out.notices == std::vector<std::string>{"serving ends: no program for 60 s"});
  Leaving one(1);
  one.end->serving_ends({"no program for 60 s"});
  CHECK(one.end->serving_ending());
  CHECK(one.silent());
  CHECK(one.out.notices.empty());
}

TEST_CASE("a program's own threads: nothing is decided here") {
  Leaving embedded(0, /*whole_job=*/false);
  embedded.end->program_done(0, kWell, {2, 3}, 0);
  embedded.end->peer_lost(1);
  embedded.end->tick(100 * kSecond);
  CHECK_FALSE(embedded.end->ended());
  CHECK(embedded.silent());
}

}  // namespace
}  // namespace penstock
