// Who leaves chunks to others, seen from outside: a balancer that drives loaders with costs, speeds and links of their
// own. Times are in milliseconds.
#include "runtime/balancer/finish_times.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <queue>
#include <tuple>
#include <vector>

#include "runtime/balancer/balancer.h"

namespace penstock::finish_times_test {
namespace {

constexpr int64_t kMs = 1'000'000;

struct Executors {
  int32_t node = 0;
  int32_t count = 1;
  int64_t chunk_ms = 10;
  int64_t stall_every = 0;  // chunks, of which the last one takes stall_ms
  int64_t stall_ms = 0;
};

// One receiver on node 0 that takes steps in order, each as soon as it is whole and the program, which works `step_ms`
// on each, wants it. Chunks from other nodes go over one link, which takes `link_ms` for each.
class World {
 public:
  World(const std::vector<Executors>& loaders, int64_t link_ms, int64_t step_ms, int64_t message_ms = 0)
      : balancer_(options()), loaders_(loaders), link_ms_(link_ms), step_ms_(step_ms), message_ms_(message_ms) {
    post(LeaseStreamOpened{1, 0, 0, 0, kSteps, kChunks, kChunks, /*payload_bytes=*/1'000'000});
    for (size_t i = 0; i < loaders_.size(); ++i) {
      free_at_.emplace_back(static_cast<size_t>(loaders_[i].count), 0);
      post(LoaderJoined{static_cast<LoaderId>(i), 2 * loaders_[i].count, 64, loaders_[i].node});
    }
    for (int64_t step = 0; step < kWindow; ++step) post(BatchBufferReserved{1, step});
    at(50, [this] { tick(); });
  }

  // Steps a second that the program got, between these two.
  double rate(int64_t first, int64_t last) {
    while (taken_ < last && !events_.empty()) {
      const auto [at_ns, number] = events_.top();
      events_.pop();
      now_ = at_ns;
      const auto happens = std::move(happenings_.at(number));
      happenings_.erase(number);
      happens();
    }
    REQUIRE(taken_ >= last);
    return static_cast<double>(last - first) * 1e9 /
           static_cast<double>(taken_at_[static_cast<size_t>(last - 1)] - taken_at_[static_cast<size_t>(first)]);
  }
  // Chunks that a loader has made.
  int64_t made(LoaderId loader) { return balancer_.figures().at(loader).chunks; }
  bool slow(LoaderId loader) { return balancer_.figures().at(loader).slow; }
  size_t held(LoaderId loader) const { return held_.count(loader) == 0 ? 0 : held_.at(loader); }
  void set_speed(LoaderId loader, int64_t chunk_ms) { loaders_[static_cast<size_t>(loader)].chunk_ms = chunk_ms; }
  void lose(LoaderId loader) {
    lost_.push_back(loader);
    post(LoaderLost{loader, "killed"});
  }
  Balancer& balancer() { return balancer_; }

 private:
  static constexpr int64_t kSteps = 100'000;
  static constexpr int32_t kChunks = 8;
  static constexpr int64_t kWindow = 4;

  static BalancerOptions options() {
    BalancerOptions options;
    options.receivers = 1;
    return options;
  }
  void at(int64_t ms, std::function<void()> what) { at_ns(now_ + ms * kMs, std::move(what)); }
  void at_ns(int64_t when, std::function<void()> what) {
    happenings_[++number_] = std::move(what);
    events_.emplace(when, number_);
  }
  void tick() {
    for (size_t i = 0; i < loaders_.size(); ++i) {
      if (lives(static_cast<LoaderId>(i))) post(LoaderAlive{static_cast<LoaderId>(i)});
    }
    post(Tick{});
    at(50, [this] { tick(); });
  }
  bool lives(LoaderId loader) const { return std::find(lost_.begin(), lost_.end(), loader) == lost_.end(); }

  void post(const Event& event) {
    for (const Action& action : balancer_.step(now_, event)) {
      if (const auto* grant = std::get_if<Grant>(&action)) make(*grant);
    }
  }
  void make(const Grant& grant) {
    const Executors& its = loaders_[static_cast<size_t>(grant.loader)];
    auto& free_at = free_at_[static_cast<size_t>(grant.loader)];
    auto& one = *std::min_element(free_at.begin(), free_at.end());
    const bool stalls = its.stall_every > 0 && ++granted_[grant.loader] % its.stall_every == 0;
    const int64_t came = now_ + message_ms_ * kMs, busy = (stalls ? its.stall_ms : its.chunk_ms) * kMs;
    one = std::max(one, came) + busy;
    ++held_[grant.loader];
    at_ns(one, [=, this] {
      --held_[grant.loader];
      if (!lives(grant.loader)) return;
      const int64_t held_ns = now_ - came;
      at(message_ms_, [=, this] {
        post(ChunkProduced{grant.loader, grant.lease, busy, 100'000, 200'000, held_ns});
        if (its.node == 0) arrive(grant);
      });
      if (its.node == 0) return;
      link_free_at_ = std::max(link_free_at_, now_) + link_ms_ * kMs;
      at_ns(link_free_at_, [=, this] { arrive(grant); });
    });
  }
  void arrive(const Grant& grant) {
    post(ChunkAccepted{grant.lease});
    if (lives(grant.loader)) post(ChunkBufferFreed{grant.loader, 0});
    if (++arrived_[grant.lease.step] == kChunks) take();
  }
  void take() {
    if (working_ || arrived_[taken_] < kChunks) return;
    working_ = true;
    taken_at_.push_back(now_);
    post(BatchBufferReserved{1, taken_ + kWindow});
    ++taken_;
    post(CursorMoved{1, taken_, false});
    at(step_ms_, [this] {
      working_ = false;
      take();
    });
  }

  Balancer balancer_;
  std::vector<Executors> loaders_;
  const int64_t link_ms_, step_ms_, message_ms_;
  int64_t now_ = 0;
  uint64_t number_ = 0;
  std::map<uint64_t, std::function<void()>> happenings_;
  std::priority_queue<std::pair<int64_t, uint64_t>, std::vector<std::pair<int64_t, uint64_t>>, std::greater<>> events_;
  std::vector<std::vector<int64_t>> free_at_;
  std::map<LoaderId, size_t> held_;
  std::map<LoaderId, int64_t> granted_;
  std::vector<LoaderId> lost_;
  int64_t link_free_at_ = 0;
  std::map<int64_t, int32_t> arrived_;
  int64_t taken_ = 0;
  bool working_ = false;
  std::vector<int64_t> taken_at_;
};

TEST_CASE("where the loaders at home suffice, nothing crosses a slow link") {
  World alone({{0, 2, 10}}, 100, 50);
  World both({{0, 2, 10}, {1, 2, 10}}, 100, 50);  // 8 chunks of 10 ms on 2 executors: 40 ms a step, of 50
  CHECK(both.rate(50, 500) >= 0.99 * alone.rate(50, 500));
  CHECK(both.made(1) < both.made(0) / 100);
}

TEST_CASE("where they do not, chunks that are needed late cross it, as many as it carries") {
  World alone({{0, 2, 10}}, 100, 1);
  World both({{0, 2, 10}, {1, 2, 10}}, 100, 1);
  // The link carries 10 chunks a second beside the 200 that are made at home.
  const double before = alone.rate(50, 500), with = both.rate(50, 500);
  CHECK(with >= 0.99 * before);
  MESSAGE("steps/s: alone " << before << ", and over the link " << with << "; crossed " << both.made(1));
  CHECK(with <= 1.06 * before);
}

TEST_CASE("a loader at home that stalls now and then is not helped over a slow link to what is needed at once") {
  for (const int64_t stall_ms : {30, 60, 120}) {
    CAPTURE(stall_ms);
    World alone({{0, 1, 4, 40, stall_ms}}, 50, 1);
    World both({{0, 1, 4, 40, stall_ms}, {1, 1, 4}}, 50, 1);
    const double before = alone.rate(50, 1000), with = both.rate(50, 1000);
    MESSAGE("steps/s: alone " << before << ", and over the link " << with << "; crossed " << both.made(1));
    CHECK(with >= 0.98 * before);
  }
}

TEST_CASE("a loader at home that is slow beside the far one still makes what the link would make later") {
  World alone({{0, 2, 40}}, 100, 1);
  World both({{0, 2, 40}, {1, 2, 10}}, 100, 1);  // 50 chunks a second, and a link that carries 10
  const double before = alone.rate(50, 300), with = both.rate(50, 300);
  CHECK(both.slow(0));
  MESSAGE("steps/s: alone " << before << ", and over the link " << with << "; crossed " << both.made(1));
  CHECK(with >= 0.99 * before);
  CHECK(with <= 1.25 * before);
}

TEST_CASE("with no loader at home the link is kept busy") {
  World far({{1, 2, 10}}, 100, 1);
  CHECK(far.rate(10, 60) >= 0.98 * 10 / 8);
}

TEST_CASE("a fast link is no reason to leave anything to others") {
  World both({{0, 2, 10}, {1, 2, 10}}, 1, 1);
  CHECK(both.rate(50, 500) >= 0.97 * 400 / 8);
}

TEST_CASE("when the loader at home is lost, the far one takes all at once") {
  World both({{0, 2, 10}, {1, 2, 10}}, 100, 50);
  both.rate(10, 50);
  both.lose(0);
  CHECK(both.rate(60, 100) >= 0.95 * 10 / 8);
}

TEST_CASE("a loader far from the coordinator, or a fast one, holds as many leases as it makes on the way of one") {
  World near({{0, 2, 5}}, 1, 1), far({{0, 2, 5}}, 1, 1, /*message_ms=*/15);
  CHECK(far.rate(50, 500) >= 0.97 * near.rate(50, 500));
  CHECK(near.held(0) <= 4);
  CHECK(far.held(0) > 6);
}

TEST_CASE("a loader below a third of its class's median speed holds what it works on, and comes back") {
  World fleet({{0, 2, 10}, {0, 2, 10}, {0, 2, 10}, {0, 2, 50}}, 1, 1);
  fleet.rate(10, 100);
  CHECK_FALSE(fleet.slow(0));
  CHECK(fleet.slow(3));
  CHECK(fleet.held(3) <= 2);
  CHECK(fleet.held(0) >= 3);
  // Three times two executors at 100 chunks a second, and two at 20.
  CHECK(fleet.rate(100, 500) >= 0.97 * (600 + 40) / 8);
  fleet.set_speed(3, 10);
  fleet.rate(500, 700);
  CHECK_FALSE(fleet.slow(3));
  CHECK(fleet.rate(700, 1200) >= 0.97 * 800 / 8);
}

TEST_CASE("what several threads make of a chunk counts as their work, and keeps them busy where the loader is slow") {
  LoaderState four;  // chunks of four samples, of which its threads work on one or two at a time
  four.depth = 3, four.threads = 4;
  CHECK(four.executors() == 1);
  CHECK(four.at_its_speed_ns(80) == 20);
  CHECK(four.most_leases() == 3);
  four.slow = true;
  CHECK(four.most_leases() == 2);  // the last sample of a chunk leaves three threads idle

  LoaderState one;
  one.depth = 2, one.threads = 1;
  CHECK(one.at_its_speed_ns(80) == 80);
  one.slow = true;
  CHECK(one.most_leases() == 1);
}

}  // namespace
}  // namespace penstock::finish_times_test
