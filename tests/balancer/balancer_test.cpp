// The balancer's rules, one example each. Times are in milliseconds; lost_after is 1 s, the lease timeout 3 s.
#include "runtime/balancer/balancer.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "runtime/base/error.h"

namespace penstock::balancer_test {
namespace {

constexpr int64_t kMs = 1'000'000;

BalancerOptions short_times(int32_t receivers = 0) {
  BalancerOptions options;
  options.lease_timeout_ns = 3000 * kMs;
  options.lost_after_ns = options.all_lost_ns = 1000 * kMs;
  options.receivers = receivers;
  return options;
}

// Steps a balancer and sorts its actions by kind.
struct Bench {
  explicit Bench(const BalancerOptions& options) : balancer(options) {}

  void at(int64_t ms, const Event& event) {
    grants.clear(), revokes.clear(), given_up.clear(), drained.clear(), failed.clear();
    for (const Action& action : balancer.step(ms * kMs, event)) {
      if (const auto* grant = std::get_if<Grant>(&action)) grants.push_back(*grant);
      if (const auto* revoke = std::get_if<Revoke>(&action)) revokes.push_back(*revoke);
      if (const auto* give_up = std::get_if<GiveUpLoader>(&action)) given_up.push_back(*give_up);
      if (const auto* one = std::get_if<LoaderDrained>(&action)) drained.push_back(one->loader);
      if (const auto* fail = std::get_if<FailLeaseStream>(&action)) failed.push_back(*fail);
    }
  }
  void alive(int64_t ms, std::initializer_list<LoaderId> loaders) {
    for (const LoaderId loader : loaders) at(ms, LoaderAlive{loader});
  }
  // The chunk is made, accepted and its chunk buffer comes back.
  std::vector<Grant> complete(int64_t ms, const Grant& grant) {
    std::vector<Grant> next;
    const std::vector<Event> events = {ChunkProduced{grant.loader, grant.lease, kMs, 1000, 1000},
                                       ChunkAccepted{grant.lease}, ChunkBufferFreed{grant.loader, grant.receiver}};
    for (const Event& event : events) {
      at(ms, event);
      next.insert(next.end(), grants.begin(), grants.end());
    }
    return next;
  }

  Balancer balancer;
  std::vector<Grant> grants;
  std::vector<Revoke> revokes;
  std::vector<GiveUpLoader> given_up;
  std::vector<LoaderId> drained;
  std::vector<FailLeaseStream> failed;
};

LeaseStreamOpened stream(LeaseStreamId id, ReceiverId receiver, int32_t chunks, int64_t steps = 10, int32_t node = 0) {
  return LeaseStreamOpened{id, receiver, node, 0, steps, chunks, chunks};
}

TEST_CASE("a chunk is granted only when its batch buffer is reserved") {
  Bench bench(short_times());
  bench.at(0, LoaderJoined{7, 4, 8, 0});
  bench.at(0, stream(1, 0, 2));
  CHECK(bench.grants.empty());
  bench.at(0, BatchBufferReserved{1, 0});
  REQUIRE(bench.grants.size() == 2);
  CHECK(bench.grants[0].loader == 7);
  CHECK(bench.grants[0].lease == LeaseKey{1, 0, 0, 1});
  CHECK(bench.grants[1].lease == LeaseKey{1, 0, 1, 1});
  bench.at(0, BatchBufferReserved{1, 0});
  CHECK(bench.grants.empty());  // reserved once
}

TEST_CASE("the last step may have fewer chunks") {
  Bench bench(short_times());
  bench.at(0, LoaderJoined{0, 8, 16, 0});
  bench.at(0, LeaseStreamOpened{1, 0, 0, 3, 5, 4, 1});
  bench.at(0, BatchBufferReserved{1, 4});
  CHECK(bench.grants.size() == 1);
  bench.at(0, BatchBufferReserved{1, 3});
  CHECK(bench.grants.size() == 4);
}

TEST_CASE("a loader holds as many leases as it is deep, and pulls the next when one is made") {
  Bench bench(short_times());
  bench.at(0, LoaderJoined{0, 2, 10, 0});
  bench.at(0, stream(1, 0, 4));
  bench.at(0, BatchBufferReserved{1, 0});
  REQUIRE(bench.grants.size() == 2);
  bench.at(5, ChunkProduced{0, bench.grants[0].lease, kMs, 0, 0});
  CHECK(bench.grants.size() == 1);
}

TEST_CASE("a chunk buffer is used from the grant until it is freed: neither made, accepted nor revoked frees it") {
  Bench bench(short_times(1));
  bench.at(0, LoaderJoined{0, 4, 2, 0});
  bench.at(0, stream(1, 0, 3));
  bench.at(0, BatchBufferReserved{1, 0});
  REQUIRE(bench.grants.size() == 2);
  const Grant first = bench.grants[0], second = bench.grants[1];
  bench.at(1, ChunkProduced{0, first.lease, kMs, 0, 0});
  CHECK(bench.grants.empty());
  bench.at(1, ChunkAccepted{first.lease});
  CHECK(bench.grants.empty());
  SUBCASE("freed") {
    bench.at(1, ChunkBufferFreed{0, 0});
    CHECK(bench.grants.size() == 1);
  }
  SUBCASE("revoked") {
    bench.at(2, stream(2, 0, 1));
    bench.at(2, BatchBufferReserved{2, 0});
    bench.at(2, LeaseStreamClosed{1});
    REQUIRE(bench.revokes.size() == 1);
    CHECK(bench.revokes[0].lease == second.lease);
    CHECK(bench.grants.empty());
    bench.at(2, ChunkBufferFreed{0, 0});  // the revoked one's
    CHECK(bench.grants.size() == 1);
  }
}

TEST_CASE("the earliest deadline first; a moved cursor changes it") {
  Bench bench(short_times());
  bench.at(0, stream(1, 0, 1));
  bench.at(0, stream(2, 1, 1));
  for (const LeaseStreamId id : {1u, 2u}) {
    for (const int64_t step : {2, 1, 0}) bench.at(0, BatchBufferReserved{id, step});
  }
  bench.at(0, CursorMoved{2, 1, false});  // lease stream 2 is one batch ahead: its step 1 is as urgent as 1's step 0
  bench.at(0, LoaderJoined{0, 6, 64, 0});
  REQUIRE(bench.grants.size() == 6);
  std::vector<int64_t> deadlines;
  for (const Grant& grant : bench.grants) deadlines.push_back(grant.deadline);
  CHECK(deadlines == std::vector<int64_t>{-1, 0, 0, 1, 1, 2});
  CHECK(bench.grants[0].lease == LeaseKey{2, 0, 0, 1});
}

TEST_CASE("the batch that a client is blocked on comes before all others") {
  Bench bench(short_times());
  bench.at(0, stream(1, 0, 2));
  bench.at(0, stream(2, 1, 1));
  bench.at(0, BatchBufferReserved{1, 0});
  bench.at(0, BatchBufferReserved{2, 1});
  bench.at(0, CursorMoved{2, 1, true});
  bench.at(0, LoaderJoined{0, 1, 8, 0});
  REQUIRE(bench.grants.size() == 1);
  CHECK(bench.grants[0].lease.lease_stream == 2);
}

TEST_CASE("equal deadlines are served in turn, so that receivers get equal shares") {
  Bench bench(short_times());
  for (const LeaseStreamId id : {1u, 2u, 3u}) {
    bench.at(0, stream(id, static_cast<ReceiverId>(id), 4));
    bench.at(0, BatchBufferReserved{id, 0});
  }
  bench.at(0, LoaderJoined{0, 6, 64, 0});
  std::vector<LeaseStreamId> order;
  for (const Grant& grant : bench.grants) order.push_back(grant.lease.lease_stream);
  CHECK(order == std::vector<LeaseStreamId>{1, 2, 3, 1, 2, 3});
}

TEST_CASE("heavier chunks first within a step, where weights are known") {
  Bench bench(short_times());
  bench.at(0, stream(1, 0, 4));
  bench.at(0, BatchBufferReserved{1, 0, {5, 9, 1, 7}});
  bench.at(0, LoaderJoined{0, 4, 16, 0});
  std::vector<int32_t> order;
  for (const Grant& grant : bench.grants) order.push_back(grant.lease.chunk);
  CHECK(order == std::vector<int32_t>{1, 3, 0, 2});
}

TEST_CASE("an idle loader before a busy one, then the receiver's node, then whoever waited longest") {
  Bench bench(short_times());
  bench.at(0, LoaderJoined{0, 2, 16, 0});
  bench.at(0, LoaderJoined{1, 2, 16, 5});
  bench.at(0, LoaderJoined{2, 2, 16, 0});
  bench.at(0, stream(1, 0, 4, 10, /*node=*/5));
  bench.at(0, BatchBufferReserved{1, 0});
  std::vector<LoaderId> order;
  for (const Grant& grant : bench.grants) order.push_back(grant.loader);
  CHECK(order == std::vector<LoaderId>{1, 0, 2, 1});
}

TEST_CASE("a loader found faster is preferred") {
  Bench bench(short_times(1));
  bench.at(0, LoaderJoined{0, 1, 16, 0});
  bench.at(0, LoaderJoined{1, 1, 16, 0});
  bench.at(0, stream(1, 0, 2, 100));
  for (int64_t step = 0; step < 20; ++step) {
    bench.at(step, BatchBufferReserved{1, step});
    REQUIRE(bench.grants.size() == 2);
    for (const Grant& grant : std::vector<Grant>(bench.grants)) {
      bench.at(step, ChunkProduced{grant.loader, grant.lease, grant.loader == 1 ? kMs : 4 * kMs, 1000, 2000});
      bench.at(step, ChunkAccepted{grant.lease});
      bench.at(step, ChunkBufferFreed{grant.loader, 0});
    }
  }
  const auto figures = bench.balancer.figures();
  CHECK(figures.at(1).speed / figures.at(0).speed == doctest::Approx(4).epsilon(0.05));
  CHECK(figures.at(0).chunks == 20);
  CHECK(figures.at(0).busy_ns == 80 * kMs);
  CHECK(bench.balancer.cost().samples == 40);
  bench.at(30, BatchBufferReserved{1, 20});
  REQUIRE(bench.grants.size() == 2);
  CHECK(bench.grants[0].loader == 1);
}

TEST_CASE("a stopped trainer cannot take the chunk buffers that other receivers need") {
  // Eight chunk buffers, four receivers known to the job: a lone receiver may use all but three of them.
  Bench bench(short_times(4));
  bench.at(0, LoaderJoined{0, 8, 8, 0});
  bench.at(0, stream(1, 0, 8));
  bench.at(0, BatchBufferReserved{1, 0});
  CHECK(bench.grants.size() == 5);  // and receiver 0 stops: none of its chunk buffers comes back
  for (const ReceiverId receiver : {1, 2, 3}) {
    bench.at(1, stream(static_cast<LeaseStreamId>(receiver) + 1, receiver, 8));
    bench.at(1, BatchBufferReserved{static_cast<LeaseStreamId>(receiver) + 1, 0});
    REQUIRE(bench.grants.size() == 1);
    // ... and it can go on for ever with that one.
    std::vector<Grant> next = bench.grants;
    for (int i = 0; i < 7; ++i) {
      next = bench.complete(2, next.at(0));
      REQUIRE(next.size() == 1);
      CHECK(next[0].receiver == receiver);
    }
  }
}

TEST_CASE("live receivers share a loader's chunk buffers; a receiver that leaves gives its share to the others") {
  Bench bench(short_times(2));
  bench.at(0, stream(1, 0, 8));
  bench.at(0, stream(2, 1, 8));
  bench.at(0, BatchBufferReserved{1, 0});
  bench.at(0, LoaderJoined{0, 100, 6, 0});
  CHECK(bench.grants.size() == 3);
  bench.at(0, LeaseStreamClosed{2});
  CHECK(bench.grants.size() == 2);  // one is kept for receiver 1
}

TEST_CASE("in a job of unknown size a chunk buffer is kept for a receiver to come") {
  Bench bench(short_times(0));
  bench.at(0, stream(1, 0, 8));
  bench.at(0, BatchBufferReserved{1, 0});
  bench.at(0, LoaderJoined{0, 100, 4, 0});
  CHECK(bench.grants.size() == 3);
  bench.at(0, stream(2, 1, 8));
  bench.at(0, BatchBufferReserved{2, 0});
  CHECK(bench.grants.size() == 1);
}

TEST_CASE("a late lease goes to another loader with a new generation; the old holder keeps it until then") {
  Bench bench(short_times(1));
  bench.at(0, LoaderJoined{0, 2, 8, 0});
  bench.at(0, stream(1, 0, 1));
  bench.at(0, BatchBufferReserved{1, 0});
  REQUIRE(bench.grants.size() == 1);
  const LeaseKey old = bench.grants[0].lease;
  for (int64_t ms = 500; ms <= 3500; ms += 500) {
    bench.alive(ms, {0});
    bench.at(ms, Tick{});
    CHECK(bench.revokes.empty());  // expired at 3 s, but nobody else is there
    CHECK(bench.grants.empty());
  }
  bench.at(3600, LoaderJoined{1, 2, 8, 0});
  REQUIRE(bench.grants.size() == 1);
  REQUIRE(bench.revokes.size() == 1);
  CHECK(bench.revokes[0].lease == old);
  const Grant again = bench.grants[0];
  CHECK(again.loader == 1);
  CHECK(again.lease == LeaseKey{1, 0, 0, 2});
  CHECK(bench.balancer.figures().at(0).regranted == 1);

  SUBCASE("the new one wins") {
    bench.at(3700, ChunkProduced{1, again.lease, kMs, 0, 0});
    bench.at(3700, ChunkAccepted{again.lease});
    CHECK(bench.revokes.empty());
  }
  SUBCASE("the old one wins: the new one is revoked") {
    bench.at(3700, ChunkProduced{0, old, kMs, 0, 0});
    bench.at(3700, ChunkAccepted{old});
    REQUIRE(bench.revokes.size() == 1);
    CHECK(bench.revokes[0].loader == 1);
    CHECK(bench.revokes[0].lease == again.lease);
    bench.at(3800, ChunkProduced{1, again.lease, kMs, 0, 0});  // too late to be dropped
    bench.at(3800, ChunkAccepted{again.lease});                // nonsense of the receiver: still done once
    CHECK(bench.grants.empty());
  }
  // Whoever won, the chunk is never granted again.
  for (int64_t ms = 4000; ms < 20000; ms += 200) {
    bench.alive(ms, {0, 1});
    bench.at(ms, Tick{});
    CHECK(bench.grants.empty());
  }
}

// Two loaders that have made 200 chunks each, in 10 ms each.
struct Practised : Bench {
  explicit Practised(const BalancerOptions& options) : Bench(options) {
    at(0, LoaderJoined{1, 64, 256, 0});
    at(0, LoaderJoined{2, 64, 256, 0});
    at(0, stream(1, 0, 1, 1000));
    for (now_ms = 0; step < 400; ++step) {
      at(now_ms, BatchBufferReserved{1, step});
      const Grant grant = grants.at(0);
      now_ms += 10;
      complete(now_ms, grant);
    }
  }
  std::vector<Grant> next(int chunks) {
    std::vector<Grant> granted;
    for (int i = 0; i < chunks; ++i) {
      at(now_ms, BatchBufferReserved{1, step++});
      granted.insert(granted.end(), grants.begin(), grants.end());
    }
    return granted;
  }
  int64_t now_ms = 0;
  int64_t step = 0;
};

TEST_CASE("a lease that takes three times what 99 of 100 take, and 250 ms, is hedged") {
  Practised bench(short_times());
  const Grant late = bench.next(1).at(0);
  const int64_t granted_ms = bench.now_ms;
  bench.alive(granted_ms + 249, {1, 2});
  bench.at(granted_ms + 249, Tick{});
  CHECK(bench.grants.empty());
  bench.at(granted_ms + 250, Tick{});
  REQUIRE(bench.grants.size() == 1);
  CHECK(bench.grants[0].loader != late.loader);
  CHECK(bench.grants[0].lease.generation == 2);
  CHECK(bench.balancer.figures()[late.loader].hedged == 1);
}

// Two loaders. The first grant's chunk is made or not, and never arrives; then 150 others do, at 1 to 150 ms.
Grant grant_that_others_overtake(Bench& bench, bool made) {
  bench.at(0, LoaderJoined{1, 4, 256, 0});
  bench.at(0, LoaderJoined{2, 4, 256, 0});
  bench.at(0, stream(1, 0, 1, 1000));
  bench.at(0, BatchBufferReserved{1, 0});
  const Grant first = bench.grants.at(0);
  if (made) bench.at(0, ChunkProduced{first.loader, first.lease, kMs, 1, 1});
  for (int64_t step = 1; step <= 150; ++step) {
    bench.at(step, BatchBufferReserved{1, step});
    bench.complete(step, bench.grants.at(0));
  }
  return first;
}

TEST_CASE("a lease that was granted before anything was known of such times is hedged like all others") {
  Bench bench(short_times());
  const Grant first = grant_that_others_overtake(bench, false);
  bench.alive(249, {1, 2});
  bench.at(249, Tick{});
  CHECK(bench.grants.empty());
  bench.at(250, Tick{});
  REQUIRE(bench.grants.size() == 1);
  CHECK(bench.grants[0].lease.step == first.lease.step);
  CHECK(bench.grants[0].loader != first.loader);
}

TEST_CASE("hedges stop where they are a fiftieth of all grants; lease_timeout holds all the same") {
  Practised bench(short_times());
  CHECK(bench.next(40).size() == 40);
  const int64_t granted_ms = bench.now_ms;
  const auto tick_at = [&](int64_t ms) {
    for (int64_t at = ms - 200; at <= ms; at += 200) bench.alive(at, {1, 2});
    bench.at(ms, Tick{});
    return bench.grants.size();
  };
  CHECK(tick_at(granted_ms + 250) == 8);  // of 440 grants
  for (int64_t ms = 500; ms < 3000; ms += 250) CHECK(tick_at(granted_ms + ms) == 0);
  CHECK(tick_at(granted_ms + 3000) == 32);
}

TEST_CASE("within a minute of a loss or a stall hedges stop where they are a twentieth of all grants") {
  Practised bench(short_times());
  const auto pass = [&](int64_t ms) {
    for (const int64_t end = bench.now_ms + ms; bench.now_ms < end;) {
      bench.now_ms += 200;
      bench.alive(bench.now_ms, {1, 2});
      bench.at(bench.now_ms, Tick{});
    }
  };
  bench.at(bench.now_ms, LoaderJoined{3, 1, 1, 0});
  int64_t expected = 23;  // of 440 grants, and of those that hedges are
  SUBCASE("a loss") {
    bench.at(bench.now_ms, LoaderLost{3, "gone"});
  }
  SUBCASE("a stall") {
    pass(400);
  }
  SUBCASE("a loss long ago") {
    bench.at(bench.now_ms, LoaderLost{3, "gone"});
    pass(60'000);
    expected = 8;
  }
  CHECK(bench.next(40).size() == 40);
  pass(2800);  // less than the lease timeout
  int64_t hedged = 0;
  for (const auto& [id, figures] : bench.balancer.figures()) hedged += figures.hedged;
  CHECK(hedged == expected);
}

TEST_CASE("where leases have become slow nothing is hedged") {
  Practised bench(short_times());
  for (int i = 0; i < 60; ++i) {  // now some take 200 ms, and 600 ms are no reason
    const Grant grant = bench.next(1).at(0);
    bench.now_ms += 200;
    bench.complete(bench.now_ms, grant);
  }
  (void)bench.next(1);
  for (int64_t ms = 200; ms <= 600; ms += 200) {
    bench.alive(bench.now_ms + ms, {1, 2});
    bench.at(bench.now_ms + ms, Tick{});
    CHECK(bench.grants.empty());
  }
}

TEST_CASE("a made chunk that is on its way three times as long as 99 of 100 are, and 1 s, is made again elsewhere") {
  Practised bench(short_times());
  const Grant lost = bench.next(1).at(0);
  const int64_t made_ms = bench.now_ms + 10;
  bench.at(made_ms, ChunkProduced{lost.loader, lost.lease, 10 * kMs, 1, 1});
  const auto tick_at = [&](int64_t ms) {
    for (int64_t at = ms - 200; at <= ms; at += 200) bench.alive(at, {1, 2});
    bench.at(ms, Tick{});
    return bench.grants.size();
  };
  for (int64_t ms = 200; ms < 1000; ms += 200) CHECK(tick_at(made_ms + ms) == 0);
  REQUIRE(tick_at(made_ms + 1000) == 1);
  CHECK(bench.grants[0].lease.step == lost.lease.step);
  CHECK(bench.grants[0].loader != lost.loader);
  CHECK(bench.balancer.figures()[lost.loader].hedged == 1);
  // Nothing more for that receiver is asked of the loader, until something of it arrives.
  bench.now_ms = made_ms + 1000;
  for (const Grant& grant : bench.next(20)) CHECK(grant.loader != lost.loader);
  bench.at(bench.now_ms, ChunkBufferFreed{lost.loader, 0});  // it has arrived
  bool again = false;
  for (const Grant& grant : bench.next(40)) again = again || grant.loader == lost.loader;
  CHECK(again);
}

TEST_CASE("a chunk that was made before anything was known of such times is made again elsewhere like all others") {
  Bench bench(short_times());
  const Grant first = grant_that_others_overtake(bench, true);
  for (int64_t ms = 200; ms <= 800; ms += 200) {
    bench.alive(ms, {1, 2});
    bench.at(ms, Tick{});
    CHECK(bench.grants.empty());
  }
  bench.alive(1000, {1, 2});
  bench.at(1000, Tick{});
  REQUIRE(bench.grants.size() == 1);
  CHECK(bench.grants[0].lease.step == first.lease.step);
  CHECK(bench.grants[0].loader != first.loader);
}

TEST_CASE("what a loader holds that stands still may go to others at once") {
  Bench bench(short_times());
  bench.at(0, LoaderJoined{1, 2, 8, 0});
  bench.at(0, stream(1, 0, 3));
  bench.at(0, BatchBufferReserved{1, 0});
  REQUIRE(bench.grants.size() == 2);
  const Grant made = bench.grants[0];
  bench.at(10, ChunkProduced{1, made.lease, 1, 1, 1});  // and not accepted: its bytes may be on their way for ever
  bench.at(20, LoaderJoined{2, 4, 8, 0});
  bench.alive(260, {2});
  bench.at(261, Tick{});  // loader 1 is silent for a quarter of lost_after
  CHECK(bench.grants.size() == 3);
  for (const Grant& grant : bench.grants) CHECK(grant.loader == 2);
}

TEST_CASE("an expired lease that is made after all stays where it is") {
  Bench bench(short_times(1));
  bench.at(0, LoaderJoined{0, 2, 8, 0});
  bench.at(0, stream(1, 0, 1));
  bench.at(0, BatchBufferReserved{1, 0});
  const LeaseKey lease = bench.grants.at(0).lease;
  bench.alive(3000, {0});
  bench.at(3000, Tick{});
  bench.at(3100, ChunkProduced{0, lease, kMs, 0, 0});
  bench.at(3200, LoaderJoined{1, 2, 8, 0});
  CHECK(bench.grants.empty());
}

TEST_CASE("a made chunk that never arrives is made again elsewhere, with twice the wait limit each time") {
  Bench bench(short_times(1));
  bench.at(0, LoaderJoined{0, 2, 8, 0});
  bench.at(0, LoaderJoined{1, 2, 8, 0});
  bench.at(0, stream(1, 0, 1));
  bench.at(0, BatchBufferReserved{1, 0});
  std::vector<int64_t> granted_at = {0};
  bench.at(0, ChunkProduced{bench.grants.at(0).loader, bench.grants.at(0).lease, kMs, 0, 0});
  for (int64_t ms = 100; ms < 25000; ms += 100) {
    bench.alive(ms, {0, 1});
    bench.at(ms, Tick{});
    if (bench.grants.empty()) continue;
    granted_at.push_back(ms);
    bench.at(ms, ChunkProduced{bench.grants.at(0).loader, bench.grants.at(0).lease, kMs, 0, 0});
  }
  CHECK(granted_at == std::vector<int64_t>{0, 3000, 9000, 21000});
}

TEST_CASE("where what a loader made does not arrive, others make that receiver's chunks until something does") {
  Bench bench(short_times(2));
  for (const LoaderId loader : {0, 1}) bench.at(0, LoaderJoined{loader, 4, 8, 0});
  bench.at(0, stream(1, 0, 2, 20));
  bench.at(0, stream(2, 1, 2, 20));
  // What loader 0 makes for receiver 0 is lost on the way; all else arrives.
  int64_t step = 0;
  std::vector<Grant> lost;
  std::vector<LoaderId> makers;  // of receiver 0's chunks
  const auto next_step = [&](int64_t ms, LeaseStreamId id) {
    std::vector<Grant> todo;
    bench.at(ms, BatchBufferReserved{id, step});
    todo = bench.grants;
    REQUIRE(todo.size() == 2);
    for (const Grant& grant : todo) {
      if (id == 1) makers.push_back(grant.loader);
      if (id == 1 && grant.loader == 0) {
        bench.at(ms, ChunkProduced{0, grant.lease, kMs, 0, 0});
        lost.push_back(grant);
      } else {
        bench.complete(ms, grant);
      }
    }
  };
  next_step(0, 1);
  REQUIRE(makers.size() == 2);
  CHECK(makers[0] != makers[1]);
  bench.alive(3000, {0, 1});
  bench.at(3000, Tick{});  // lease_timeout: loader 1 makes the one that was lost
  REQUIRE(bench.grants.size() == 1);
  CHECK(bench.grants[0].loader == 1);
  bench.complete(3001, bench.grants[0]);
  makers.clear();
  for (step = 1; step < 5; ++step) next_step(3000 + step, 1);
  CHECK(makers == std::vector<LoaderId>(8, 1));
  step = 0;
  next_step(3010, 2);  // receiver 1 has both
  CHECK(lost.size() == 1);
  CHECK(bench.balancer.any_apart());

  bench.at(3020, ChunkBufferFreed{0, 0});  // the lost one came after all
  CHECK_FALSE(bench.balancer.any_apart());
  makers.clear();
  step = 5;
  next_step(3020, 1);
  const auto of_loader_0 = static_cast<size_t>(std::count(makers.begin(), makers.end(), 0));
  CHECK(of_loader_0 > 0);
  bench.alive(6020, {0, 1});
  bench.at(6020, Tick{});
  REQUIRE(bench.grants.size() == of_loader_0);
  for (const Grant& grant : std::vector<Grant>(bench.grants)) bench.complete(6021, grant);
  // Nobody else is left: what is cut off may be another way than this one.
  bench.at(6030, LoaderLost{1, "killed"});
  step = 6;
  bench.at(6031, BatchBufferReserved{1, step});
  REQUIRE(bench.grants.size() == 2);
  CHECK(bench.grants[0].loader == 0);
}

TEST_CASE("a lost loader's chunks, made or not, wait again; accepted ones do not") {
  Bench bench(short_times(1));
  bench.at(0, LoaderJoined{0, 3, 8, 0});
  bench.at(0, stream(1, 0, 3));
  bench.at(0, BatchBufferReserved{1, 0});
  const std::vector<Grant> first = bench.grants;
  REQUIRE(first.size() == 3);
  bench.at(1, ChunkProduced{0, first[0].lease, kMs, 0, 0});
  bench.at(1, ChunkAccepted{first[0].lease});
  bench.at(1, ChunkProduced{0, first[1].lease, kMs, 0, 0});
  bench.at(2, LoaderLost{0, "killed"});
  bench.at(3, LoaderJoined{1, 4, 8, 0});
  REQUIRE(bench.grants.size() == 2);
  CHECK(bench.grants[0].lease == LeaseKey{1, 0, 1, 2});
  CHECK(bench.grants[1].lease == LeaseKey{1, 0, 2, 2});
  const Grant second = bench.grants[0];
  bench.at(4, ChunkProduced{0, first[2].lease, kMs, 0, 0});  // a dead loader's late word
  CHECK(bench.grants.empty());
  bench.at(4, ChunkAccepted{first[1].lease});  // its chunk was on the way: welcome, the copy is not needed
  REQUIRE(bench.revokes.size() == 1);
  CHECK(bench.revokes[0].lease == second.lease);
}

TEST_CASE("a loader that was lost and joins again starts fresh") {
  Bench bench(short_times(1));
  bench.at(0, LoaderJoined{0, 2, 2, 0});
  bench.at(0, stream(1, 0, 2));
  bench.at(0, BatchBufferReserved{1, 0});
  REQUIRE(bench.grants.size() == 2);
  SUBCASE("after its loss was told") {
    bench.at(1, LoaderLost{0, "killed"});
  }
  SUBCASE("before") {}
  bench.at(2, LoaderJoined{0, 2, 2, 0});
  REQUIRE(bench.grants.size() == 2);
  CHECK(bench.grants[0].lease.generation == 2);
}

TEST_CASE("a chunk that failed goes to another loader, then its lease stream fails with the last reason") {
  Bench bench(short_times(1));
  bench.at(0, stream(1, 0, 1));
  bench.at(0, BatchBufferReserved{1, 0});
  bench.at(0, LoaderJoined{0, 2, 8, 0});
  const Grant first = bench.grants.at(0);

  SUBCASE("no other loader is left") {
    bench.at(1, ChunkFailed{0, first.lease, "cannot read x.jpg: EIO"});
    REQUIRE(bench.failed.size() == 1);
    CHECK(bench.failed[0].lease_stream == 1);
    CHECK(bench.failed[0].reason.find("rank 0 (loader): cannot read x.jpg: EIO") != std::string::npos);
    CHECK(bench.failed[0].reason.find("no other loader is left") != std::string::npos);
  }
  SUBCASE("each loader once") {
    bench.at(0, LoaderJoined{1, 2, 8, 0});
    bench.at(1, ChunkFailed{0, first.lease, "EIO"});
    REQUIRE(bench.grants.size() == 1);
    CHECK(bench.grants[0].loader == 1);
    bench.at(2, ChunkFailed{1, bench.grants[0].lease, "ENOENT"});
    CHECK(bench.failed.size() == 1);
  }
  SUBCASE("max_attempts times") {
    for (const LoaderId id : {1, 2, 3}) bench.at(0, LoaderJoined{id, 2, 8, 0});
    std::set<LoaderId> tried;
    Grant last = first;
    for (int attempt = 0; attempt < 3; ++attempt) {
      CHECK(tried.insert(last.loader).second);
      bench.at(1, ChunkFailed{last.loader, last.lease, "attempt " + std::to_string(attempt)});
      if (!bench.grants.empty()) last = bench.grants[0];
    }
    REQUIRE(bench.failed.size() == 1);
    CHECK(bench.failed[0].reason.find("failed 3 times") != std::string::npos);
    CHECK(bench.failed[0].reason.find("attempt 2") != std::string::npos);
  }
  SUBCASE("the only other loader is lost while the chunk waits for it") {
    bench.at(0, LoaderJoined{1, 1, 8, 0});
    bench.at(0, stream(2, 0, 1));
    bench.at(0, CursorMoved{2, 0, true});
    bench.at(0, ChunkFailed{0, first.lease, "EIO"});
    REQUIRE(bench.grants.size() == 1);
    bench.at(1, LoaderLost{1, "killed"});
    REQUIRE(bench.failed.size() == 1);
    CHECK(bench.failed[0].lease_stream == 1);
  }
}

TEST_CASE("with a time for it, a chunk that every loader failed rests and is tried again, by the same ones too") {
  BalancerOptions options = short_times(1);
  options.retry_for_ns = 1000 * kMs;
  Bench bench(options);
  bench.at(0, stream(1, 0, 1));
  bench.at(0, BatchBufferReserved{1, 0});
  bench.at(0, LoaderJoined{0, 2, 8, 0});
  Grant last = bench.grants.at(0);

  SUBCASE("the disk recovers") {
    bench.at(1, ChunkFailed{0, last.lease, "EIO"});
    CHECK(bench.failed.empty());
    bench.at(2, ChunkBufferFreed{0, 0});
    bench.at(100, Tick{});
    CHECK(bench.grants.empty());  // it rests for 100 ms
    bench.at(101, Tick{});
    REQUIRE(bench.grants.size() == 1);
    CHECK(bench.grants[0].lease.generation > last.lease.generation);
    bench.at(102, ChunkProduced{0, bench.grants[0].lease, 1, 1, 1});
    bench.at(103, ChunkAccepted{bench.grants[0].lease});
    bench.at(5000, Tick{});
    CHECK(bench.failed.empty());
  }
  SUBCASE("it does not: pauses grow, the last try is at the end of the time, and the reason says how often") {
    std::vector<int64_t> tried;
    for (int64_t now = 1; bench.failed.empty() && now < 5000; ++now) {
      bench.alive(now, {0});
      bench.at(now, Tick{});
      for (const Grant& grant : bench.grants) last = grant;
      if (now == 1 || !bench.grants.empty()) {
        tried.push_back(now);
        bench.at(now, ChunkFailed{0, last.lease, "EIO"});
        if (bench.failed.empty()) bench.at(now, ChunkBufferFreed{0, 0});
      }
    }
    CHECK(tried == std::vector<int64_t>{1, 101, 301, 701, 1001});
    REQUIRE(bench.failed.size() == 1);
    CHECK(bench.failed[0].reason.find("failed 5 times within 1.0 s") != std::string::npos);
  }
  SUBCASE("an older copy is accepted while it rests") {
    bench.at(1, ChunkFailed{0, last.lease, "EIO"});
    bench.at(2, ChunkAccepted{last.lease});
    bench.at(500, Tick{});
    CHECK(bench.grants.empty());
    CHECK(bench.failed.empty());
  }
  SUBCASE("the client breaks off while it rests") {
    bench.at(1, ChunkFailed{0, last.lease, "EIO"});
    bench.at(2, LeaseStreamClosed{1});
    bench.at(500, Tick{});
    CHECK(bench.grants.empty());
  }
}

TEST_CASE("a loader that only fails does not swallow the work: it pauses") {
  Bench bench(short_times(1));
  bench.at(0, LoaderJoined{0, 1, 100, 0});
  bench.at(0, stream(1, 0, 50));
  bench.at(0, BatchBufferReserved{1, 0});
  Grant last = bench.grants.at(0);
  bench.at(0, LoaderJoined{1, 1, 100, 0});
  int failures = 0;
  for (bool granted = true; granted && failures < 50; ++failures) {
    bench.at(1, ChunkFailed{0, last.lease, "disk is gone"});
    granted = false;
    for (const Grant& grant : bench.grants) {
      if (grant.loader == 0) last = grant, granted = true;
    }
  }
  CHECK(failures == 3);
  bench.at(40, Tick{});
  CHECK(bench.grants.empty());
  bench.at(100, Tick{});
  CHECK(bench.grants.size() == 1);  // and is tried again
}

TEST_CASE("a silent loader gets nothing, and everything again when it speaks") {
  Bench bench(short_times(1));
  bench.at(0, LoaderJoined{0, 1, 8, 0});
  bench.at(0, stream(1, 0, 1));
  bench.at(250, Tick{});
  bench.at(260, BatchBufferReserved{1, 0});
  CHECK(bench.grants.empty());
  bench.alive(300, {0});
  CHECK(bench.grants.size() == 1);
}

TEST_CASE("a loader silent for lost_after is given up once") {
  Bench bench(short_times(1));
  bench.at(0, LoaderJoined{0, 1, 8, 0});
  int times = 0;
  for (int64_t ms = 100; ms < 3000; ms += 100) {
    bench.at(ms, Tick{});
    for (const GiveUpLoader& action : bench.given_up) {
      ++times;
      CHECK(action.loader == 0);
      CHECK(action.reason == "silent for 1.0 s");
      CHECK(ms == 1000);
    }
  }
  CHECK(times == 1);
}

TEST_CASE("with no loader left, lease streams fail after lost_after; a spare that joins in time saves them") {
  Bench bench(short_times(1));
  bench.at(0, LoaderJoined{4, 1, 8, 0});
  bench.at(0, stream(1, 0, 1));
  bench.at(0, BatchBufferReserved{1, 0});
  bench.at(100, LoaderLost{4, "connection reset"});
  bench.at(1000, Tick{});
  CHECK(bench.failed.empty());
  SUBCASE("spare") {
    bench.at(1050, LoaderJoined{5, 1, 8, 0});
    CHECK(bench.grants.size() == 1);
    bench.at(1100, Tick{});
    CHECK(bench.failed.empty());
  }
  SUBCASE("none") {
    bench.at(1100, Tick{});
    REQUIRE(bench.failed.size() == 1);
    CHECK(bench.failed[0].reason ==
          "no loader is left, and none joined within 1.0 s; the last one was rank 4 (loader), lost: connection reset");
    bench.at(1200, Tick{});
    CHECK(bench.failed.empty());
  }
}

TEST_CASE("before the first loader has joined, lease streams wait") {
  Bench bench(short_times(1));
  bench.at(0, stream(1, 0, 1));
  bench.at(100'000, Tick{});
  CHECK(bench.failed.empty());
}

TEST_CASE("a closed lease stream's leases are revoked, its waiting chunks dropped, its late messages ignored") {
  Bench bench(short_times(1));
  bench.at(0, LoaderJoined{0, 2, 8, 0});
  bench.at(0, stream(1, 0, 5));
  bench.at(0, BatchBufferReserved{1, 0});
  const std::vector<Grant> held = bench.grants;
  REQUIRE(held.size() == 2);
  bench.at(1, ChunkProduced{0, held[0].lease, kMs, 0, 0});
  REQUIRE(bench.grants.size() == 1);
  bench.at(2, LeaseStreamClosed{1});
  CHECK(bench.revokes.size() == 2);  // the two not made yet
  for (const Event& late : std::vector<Event>{ChunkAccepted{held[0].lease}, BatchBufferReserved{1, 1},
                                              CursorMoved{1, 3, true}, ChunkProduced{0, held[1].lease, kMs, 0, 0},
                                              LeaseStreamClosed{1}, ChunkFailed{0, held[0].lease, "late"},
                                              ChunkBufferFreed{9, 0}, LoaderLost{9, ""}, LoaderAlive{9}}) {
    bench.at(3, late);
    CHECK(bench.grants.empty());
    CHECK(bench.failed.empty());
  }
}

TEST_CASE("a revoked lease keeps its place in the depth until its chunk buffer is back or its result came") {
  Bench bench(short_times(1));
  bench.at(0, LoaderJoined{0, 1, 8, 0});
  bench.at(0, stream(1, 0, 1));
  bench.at(0, BatchBufferReserved{1, 0});
  const LeaseKey lease = bench.grants.at(0).lease;
  bench.at(1, LeaseStreamClosed{1});
  bench.at(1, stream(2, 0, 1));
  bench.at(1, BatchBufferReserved{2, 0});
  CHECK(bench.grants.empty());
  SUBCASE("dropped") {
    bench.at(2, ChunkBufferFreed{0, 0});
  }
  SUBCASE("made all the same") {
    bench.at(2, ChunkProduced{0, lease, kMs, 0, 0});
  }
  CHECK(bench.grants.size() == 1);
}

TEST_CASE(
    "a loader whose reads run ahead holds more leases than its depth, while it wants them and has chunk buffers") {
  Bench bench(short_times(1));
  bench.at(0, LoaderJoined{0, 2, 6, 0});
  bench.at(0, stream(1, 0, 10));
  bench.at(0, BatchBufferReserved{1, 0});
  std::vector<Grant> held = bench.grants;
  CHECK(held.size() == 2);
  bench.at(1, LoaderAhead{0, 3});
  CHECK(bench.grants.size() == 3);
  held.insert(held.end(), bench.grants.begin(), bench.grants.end());
  bench.at(2, LoaderAhead{0, 100});
  CHECK(bench.grants.size() == 1);  // no more chunk buffers than these
  bench.at(3, LoaderAhead{0, 0});
  CHECK(bench.grants.empty());
  CHECK(bench.revokes.empty());  // what it holds it keeps
  for (size_t i = 0; i < 4; ++i) CHECK(bench.complete(4, held[i]).empty());
  CHECK(bench.complete(5, held[4]).size() == 1);
  bench.at(6, LoaderAhead{9, 1});  // nobody's
  CHECK(bench.grants.empty());
  CHECK_THROWS_AS(bench.at(7, LoaderAhead{0, -1}), Error);
}

TEST_CASE("a receiver's messages may overtake the loader's") {
  Bench bench(short_times(1));
  bench.at(0, LoaderJoined{0, 1, 1, 0});
  bench.at(0, stream(1, 0, 2));
  bench.at(0, BatchBufferReserved{1, 0});
  const Grant first = bench.grants.at(0);
  bench.at(1, ChunkBufferFreed{0, 0});
  CHECK(bench.grants.empty());  // its lease is still counted
  bench.at(1, ChunkAccepted{first.lease});
  REQUIRE(bench.grants.size() == 1);
  bench.at(2, ChunkProduced{0, first.lease, kMs, 0, 0});
  CHECK(bench.grants.empty());
  CHECK(bench.balancer.figures().at(0).chunks == 1);
}

TEST_CASE("time that runs backwards is taken as standing still") {
  Bench bench(short_times(1));
  bench.at(900, LoaderJoined{0, 1, 1, 0});
  bench.at(0, LoaderAlive{0});
  bench.at(1000, Tick{});
  CHECK(bench.given_up.empty());
}

TEST_CASE("nonsense is refused by name and changes nothing") {
  Bench bench(short_times(1));
  CHECK_THROWS_AS(bench.at(0, LoaderJoined{0, 0, 4, 0}), Error);
  CHECK_THROWS_AS(bench.at(0, LoaderJoined{0, 2, 0, 0}), Error);
  bench.at(0, LoaderJoined{0, 8, 8, 0});
  bench.at(0, stream(1, 0, 2));
  CHECK_THROWS_WITH_AS(bench.at(0, stream(1, 0, 2)), doctest::Contains("lease stream 1 is opened twice"), Error);
  CHECK_THROWS_AS(bench.at(0, LeaseStreamOpened{2, 0, 0, 5, 4, 1, 1}), Error);
  CHECK_THROWS_WITH_AS(bench.at(0, BatchBufferReserved{1, 10}), doctest::Contains("step 10 is outside"), Error);
  CHECK_THROWS_AS(bench.at(0, BatchBufferReserved{1, 0, {1, 2, 3}}), Error);
  CHECK_THROWS_AS(bench.at(0, BatchBufferReserved{1, 0, {1, -2}}), Error);
  bench.at(0, BatchBufferReserved{1, 0, {1, 2}});
  CHECK(bench.grants.size() == 2);
}

TEST_CASE("one grant in remake_every is compared: when its chunk was accepted, another loader makes it once more") {
  BalancerOptions options = short_times();
  options.remake_every = 3;
  Bench bench(options);
  bench.at(0, LoaderJoined{7, 8, 8, 0});
  bench.at(0, LoaderJoined{8, 8, 8, 0});
  bench.at(0, stream(1, 0, 4));
  bench.at(0, BatchBufferReserved{1, 0});
  REQUIRE(bench.grants.size() == 4);
  const std::vector<Grant> first = bench.grants;
  for (size_t i = 0; i < 4; ++i) CHECK(first[i].compared == (i == 2));
  const LoaderId other = first[2].loader == 7 ? 8 : 7;
  CHECK(bench.complete(1, first[0]).empty());
  bench.at(2, ChunkProduced{first[2].loader, first[2].lease, kMs, 1000, 1000});
  CHECK(bench.grants.empty());
  bench.at(2, ChunkAccepted{first[2].lease});
  REQUIRE(bench.grants.size() == 1);
  const Grant second = bench.grants[0];
  CHECK(is_remake(second.lease));
  CHECK(second.compared);
  CHECK(second.loader == other);
  CHECK(second.lease.step == 0);
  CHECK(second.lease.chunk == 2);
  SUBCASE("it is a lease like others, and ends like them") {
    CHECK(bench.complete(3, second).empty());
    bench.at(3, ChunkAccepted{second.lease});  // again: changes nothing
    CHECK(bench.grants.empty());
  }
  SUBCASE("the lease stream does not wait for it") {
    bench.at(3, LeaseStreamClosed{1});
    bool revoked = false;
    for (const Revoke& revoke : bench.revokes) revoked = revoked || revoke.lease == second.lease;
    CHECK(revoked);
  }
  SUBCASE("where it fails, or its loader is lost, nothing is missed") {
    bench.at(3, ChunkFailed{other, second.lease, "EIO"});
    CHECK(bench.failed.empty());
    bench.at(3, LoaderLost{other, "gone"});
    for (const Grant& grant : bench.grants) CHECK_FALSE(is_remake(grant.lease));
  }
}

TEST_CASE("with one loader nothing is made twice") {
  BalancerOptions options = short_times();
  options.remake_every = 1;
  Bench bench(options);
  bench.at(0, LoaderJoined{7, 8, 8, 0});
  bench.at(0, stream(1, 0, 4));
  bench.at(0, BatchBufferReserved{1, 0});
  const std::vector<Grant> first = bench.grants;
  REQUIRE(first.size() == 4);
  for (const Grant& grant : first) {
    CHECK_FALSE(grant.compared);
    CHECK(bench.complete(1, grant).empty());
  }
}

TEST_CASE("a loader that drains gets nothing more, and may go when it holds nothing") {
  Bench bench(short_times());
  bench.at(0, LoaderJoined{7, 2, 8, 0});
  bench.at(0, stream(1, 0, 4));
  bench.at(0, BatchBufferReserved{1, 0});
  const std::vector<Grant> first = bench.grants;
  REQUIRE(first.size() == 2);
  bench.at(1, LoaderDraining{7});
  CHECK(bench.drained.empty());
  bench.at(2, ChunkProduced{7, first[0].lease, kMs, 0, 0});
  CHECK(bench.grants.empty());
  bench.at(2, LoaderJoined{8, 1, 8, 0});
  REQUIRE(bench.grants.size() == 1);
  CHECK(bench.grants[0].loader == 8);
  bench.at(3, ChunkAccepted{first[0].lease});
  bench.at(3, ChunkBufferFreed{7, 0});
  CHECK(bench.drained.empty());
  bench.at(4, ChunkProduced{7, first[1].lease, kMs, 0, 0});
  bench.at(4, ChunkAccepted{first[1].lease});
  CHECK(bench.drained.empty());
  bench.at(4, ChunkBufferFreed{7, 0});
  CHECK(bench.drained == std::vector<LoaderId>{7});
  bench.at(5, Tick{});
  CHECK(bench.drained.empty());
  bench.at(6, LoaderJoined{9, 1, 8, 0});
  bench.at(7, LoaderDraining{9});  // with a lease
  bench.at(8, LoaderLost{9, "gone"});
  bench.at(9, Tick{});
  CHECK(bench.drained.empty());
}

TEST_CASE("policy random, for tests: admitted pairs in an order of the seed's") {
  const auto first_chunks = [](uint64_t seed) {
    BalancerOptions options = short_times(1);
    options.policy = BalancerOptions::Policy::random;
    options.random_seed = seed;
    Bench bench(options);
    bench.at(0, LoaderJoined{0, 4, 16, 0});
    bench.at(0, LoaderJoined{1, 4, 16, 0});
    bench.at(0, stream(1, 0, 8));
    bench.at(0, BatchBufferReserved{1, 0});
    std::vector<int32_t> order;
    for (const Grant& grant : bench.grants) order.push_back(grant.lease.chunk * 10 + grant.loader);
    CHECK(order.size() == 8);
    return order;
  };
  CHECK(first_chunks(1) == first_chunks(1));
  CHECK(first_chunks(1) != first_chunks(2));
}

// Loader 0 holds groups 0 and 1, loader 1 groups 1 and 2 of a lease stream whose step 0 has a chunk of each.
Bench with_local_data(BalancerOptions options) {
  Bench bench(options);
  bench.at(0, stream(1, 0, 1));
  for (const LoaderId loader : {0, 1}) bench.at(0, LoaderJoined{loader, 4, 8, 0});
  bench.at(0, SamplesHeld{1, 0, {0, 1}});
  bench.at(0, SamplesHeld{1, 1, {1, 2}});
  return bench;
}

TEST_CASE("a chunk is granted only to a loader that holds its samples") {
  Bench bench = with_local_data(short_times(1));
  bench.at(0, BatchBufferReserved{1, 0, {}, {2, 0, 2, 0}});  // four chunks, whatever the stream's steps have elsewhere
  REQUIRE(bench.grants.size() == 4);
  for (const Grant& grant : bench.grants) CHECK(grant.loader == (grant.lease.chunk % 2 == 0 ? 1 : 0));
  bench.at(0, BatchBufferReserved{1, 1, {}, {3, 3}});
  CHECK(bench.grants.empty());  // nobody has it, yet
  bench.at(1, LoaderJoined{2, 4, 8, 0});
  CHECK(bench.grants.empty());  // it has not said what it holds
  bench.at(2, SamplesHeld{1, 2, {3}});
  REQUIRE(bench.grants.size() == 2);
  CHECK(bench.grants[0].loader == 2);
  bench.at(3, SamplesHeld{1, 2, {}});  // it has not any more
  bench.at(3, BatchBufferReserved{1, 2, {}, {3}});
  CHECK(bench.grants.empty());
  CHECK_THROWS_AS(bench.at(3, BatchBufferReserved{1, 3, {}, {-1}}), Error);
  CHECK_THROWS_AS(bench.at(3, SamplesHeld{1, 2, {-1}}), Error);
}

TEST_CASE("a chunk that no loader with room can read does not keep those behind it waiting") {
  Bench bench(short_times(1));
  bench.at(0, stream(1, 0, 1));
  bench.at(0, LoaderJoined{0, 1, 2, 0});
  bench.at(0, LoaderJoined{1, 4, 8, 0});
  bench.at(0, SamplesHeld{1, 0, {0}});
  bench.at(0, SamplesHeld{1, 1, {1}});
  bench.at(0, BatchBufferReserved{1, 0, {}, {0, 0, 0, 1}});
  REQUIRE(bench.grants.size() == 2);
  CHECK(bench.grants[1].lease.chunk == 3);
  CHECK(bench.grants[1].loader == 1);
}

TEST_CASE("a late chunk goes to another holder of its samples, and is no hedge where there is none") {
  Bench bench = with_local_data(short_times(1));
  bench.at(0, BatchBufferReserved{1, 0, {}, {0, 1}});
  REQUIRE(bench.grants.size() == 2);
  const LoaderId second = bench.grants[1].loader;
  for (int64_t ms = 100; ms <= 3000; ms += 100) {
    bench.alive(ms, {0, 1});
    bench.at(ms, Tick{});
  }
  REQUIRE(bench.grants.size() == 1);
  CHECK(bench.grants[0].lease.chunk == 1);
  CHECK(bench.grants[0].loader == 1 - second);
}

TEST_CASE("the chunks of a lost holder go to another one; without any their lease stream fails, by name") {
  Bench bench = with_local_data(short_times(1));
  bench.at(0, stream(2, 0, 1));
  for (const LoaderId loader : {0, 1}) bench.at(0, SamplesHeld{2, loader, {0}});
  bench.at(0, BatchBufferReserved{1, 0, {}, {1, 0}});
  REQUIRE(bench.grants.size() == 2);
  bench.at(0, BatchBufferReserved{2, 0, {}, {0}});
  bench.at(10, LoaderLost{0, "killed"});
  for (const Grant& grant : bench.grants) CHECK((grant.loader == 1 && grant.lease != LeaseKey{1, 0, 1, 2}));
  bench.alive(1000, {1});
  bench.at(1009, Tick{});
  CHECK(bench.failed.empty());
  SUBCASE("") {
    bench.at(1010, Tick{});
    REQUIRE(bench.failed.size() == 1);
    CHECK(bench.failed[0].lease_stream == 1);
    CHECK(bench.failed[0].unreadable == LeaseKey{1, 0, 1, 1});
    CHECK(bench.failed[0].reason.find("the last one was rank 0 (loader), lost: killed") != std::string::npos);
  }
  SUBCASE("but not while a loader has still to say what it holds") {
    bench.at(1010, LoaderJoined{2, 2, 4, 0});
    bench.at(1500, Tick{});
    CHECK(bench.failed.empty());
    bench.alive(1600, {2});
    bench.at(1600, SamplesHeld{2, 2, {}});
    bench.at(1600, SamplesHeld{1, 2, {0}});
    REQUIRE(bench.grants.size() == 1);
    CHECK(bench.grants[0].loader == 2);
    CHECK(bench.grants[0].lease == LeaseKey{1, 0, 1, 2});
  }
}

TEST_CASE("a chunk that all holders of its samples failed has failed, whatever others there are") {
  Bench bench = with_local_data(short_times(1));
  bench.at(0, BatchBufferReserved{1, 0, {}, {0}});
  bench.at(1, ChunkFailed{0, bench.grants.at(0).lease, "EIO"});
  REQUIRE(bench.failed.size() == 1);
  CHECK(bench.failed[0].reason.find("rank 0 (loader): EIO") != std::string::npos);
  CHECK(bench.failed[0].unreadable == LeaseKey{});
}

TEST_CASE("chunks are made twice and compared where two loaders hold their samples") {
  BalancerOptions options = short_times(1);
  options.remake_every = 1;
  Bench bench = with_local_data(options);
  bench.at(0, BatchBufferReserved{1, 0, {}, {0, 1}});
  const std::vector<Grant> first = bench.grants;
  REQUIRE(first.size() == 2);
  CHECK_FALSE(first[0].compared);
  CHECK(first[1].compared);
  CHECK(bench.complete(1, first[0]).empty());
  const std::vector<Grant> again = bench.complete(1, first[1]);
  REQUIRE(again.size() == 1);
  CHECK(is_remake(again[0].lease));
  CHECK(again[0].loader == 1 - first[1].loader);
}

}  // namespace
}  // namespace penstock::balancer_test
