// Who is told that a rank lives, and who is missed when: without clocks, threads or ranks.
#include "runtime/receiver/heartbeats.h"

#include <doctest/doctest.h>

#include <vector>

namespace penstock {
namespace {

// A rank whose loop turns every 0.1 s. Of two other receivers (1, 2) and two loaders (3, 4) beside the coordinator's
// (0).
class Rank {
 public:
  Rank(PeerId self, Nanoseconds every_ns, Nanoseconds silence_ns)
      : heartbeats_({self, 0, {0, 1, 2}, {3, 4}, every_ns, silence_ns}, [this](PeerId peer, const ControlMessage& m) {
          REQUIRE(std::holds_alternative<Alive>(m));
          told.push_back(peer);
        }) {
    heartbeats_.begin(now_);
  }
  // Those that were missed, while the `received` ones went on saying something.
  std::vector<PeerId> run(Nanoseconds time, const std::vector<PeerId>& received = {}) {
    std::vector<PeerId> missed;
    for (const Nanoseconds end = now_ + time; now_ < end;) {
      now_ += kSecond / 10;
      for (const PeerId peer : received) heartbeats_.received(peer, now_);
      if (const auto lost = heartbeats_.tick(now_)) {
        missed.push_back(lost->peer);
        reason = lost->reason;
      }
    }
    return missed;
  }

  void dead(PeerId peer) { heartbeats_.dead(peer); }

  std::vector<PeerId> told;
  std::string reason;

 private:
  Heartbeats heartbeats_;
  Nanoseconds now_ = 100 * kSecond;
};

TEST_CASE("the coordinator's receiver tells everybody, and misses a receiver that falls silent, once") {
  Rank rank(0, kSecond, 4 * kSecond);
  CHECK(rank.run(4 * kSecond, {1}).empty());
  CHECK(rank.told == std::vector<PeerId>{1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4});
  CHECK(rank.run(kSecond, {1}) == std::vector<PeerId>{2});
  CHECK(rank.reason.find("nothing was heard of it for 4 s") == 0);
  CHECK(rank.run(10 * kSecond, {1}).empty());  // and loaders are not missed here at all
}

TEST_CASE("the dead are told nothing more") {
  Rank rank(0, kSecond, 4 * kSecond);
  rank.dead(3);
  CHECK(rank.run(2 * kSecond).empty());
  CHECK(rank.told == std::vector<PeerId>{1, 2, 4, 1, 2, 4});
}

TEST_CASE("another receiver reports to the coordinator alone, and misses only that, with twice the wait limit") {
  Rank rank(2, kSecond, 4 * kSecond);
  CHECK(rank.run(2 * kSecond).empty());
  CHECK(rank.told == std::vector<PeerId>{0, 0});
  CHECK(rank.run(6 * kSecond).empty());
  CHECK(rank.run(kSecond) == std::vector<PeerId>{0});
  CHECK(rank.reason.find("for 8 s") != std::string::npos);
}

TEST_CASE("between threads nothing is said, and silence means nothing") {
  for (const PeerId self : {0, 1}) {
    Rank rank(self, 0, 0);
    CHECK(rank.run(100 * kSecond).empty());
    CHECK(rank.told.empty());
  }
}

}  // namespace
}  // namespace penstock
