// How good the pulling is: against bounds that hold for any schedule of its kind, on random instances with exact costs.
//
// W: costs of the chunks, s: speeds of the loaders, C: when the last chunk is done. All chunks are ready at once, each
// loader makes one at a time, messages take no time.
//   lower bound of any schedule     LB = max(sum W / sum s, max over k of (k largest W) / (k fastest s))
//   pulling, at the latest          C <= sum W / sum s + w_last (1 / s_last - 1 / sum s)
// The second one holds because all loaders were busy until the last chunk began.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <queue>
#include <random>
#include <tuple>
#include <vector>

#include "runtime/balancer/balancer.h"

namespace penstock {
namespace {

struct Instance {
  std::vector<int64_t> work;   // in units
  std::vector<int64_t> speed;  // in units per millisecond
  int64_t streams = 1;         // the chunks are dealt out to streams of one receiver
};

struct Outcome {
  double makespan_ns = 0;
  double last_work = 0;
  double last_speed = 0;
  size_t chunks = 0;
};

Outcome run(const Instance& instance, bool send_weights) {
  BalancerOptions options;
  options.receivers = 1;
  Balancer balancer(options);
  struct Finish {
    int64_t at;
    int64_t sequence;
    Grant grant;
    bool operator>(const Finish& b) const { return std::tie(at, sequence) > std::tie(b.at, b.sequence); }
  };
  std::priority_queue<Finish, std::vector<Finish>, std::greater<>> finishes;
  Outcome outcome;
  int64_t now = 0, sequence = 0;
  const auto work_of = [&](const LeaseKey& lease) {
    return instance.work[static_cast<size_t>(lease.chunk * instance.streams) + lease.stream];
  };
  const auto post = [&](const Event& event) {
    for (const Action& action : balancer.step(now, event)) {
      const Grant& grant = std::get<Grant>(action);
      const int64_t busy = work_of(grant.lease) * 1'000'000 / instance.speed[static_cast<size_t>(grant.loader)];
      finishes.push({now + busy, ++sequence, grant});
    }
  };
  const int64_t count = static_cast<int64_t>(instance.work.size());
  for (int64_t s = 0; s < instance.streams; ++s) {
    std::vector<int64_t> weights;
    for (int64_t i = s; i < count; i += instance.streams) weights.push_back(instance.work[static_cast<size_t>(i)]);
    const int32_t chunks = static_cast<int32_t>(weights.size());
    post(LeaseStreamOpened{static_cast<LeaseStreamId>(s), 0, 0, 0, 1, chunks, chunks});
    if (!send_weights) weights.clear();
    post(BatchBufferReserved{static_cast<LeaseStreamId>(s), 0, weights});
  }
  for (size_t i = 0; i < instance.speed.size(); ++i) {
    post(LoaderJoined{static_cast<LoaderId>(i), 1, 1 << 20, 0});
  }
  while (!finishes.empty()) {
    const Finish finish = finishes.top();
    finishes.pop();
    now = finish.at;
    const int64_t work = work_of(finish.grant.lease);
    outcome.last_work = static_cast<double>(work);
    outcome.last_speed = static_cast<double>(instance.speed[static_cast<size_t>(finish.grant.loader)]) / 1e6;
    outcome.makespan_ns = static_cast<double>(now);
    ++outcome.chunks;
    post(ChunkProduced{finish.grant.loader, finish.grant.lease,
                       work * 1'000'000 / instance.speed[static_cast<size_t>(finish.grant.loader)], work * 1000, work});
    post(ChunkAccepted{finish.grant.lease});
    post(ChunkBufferFreed{finish.grant.loader, 0});
  }
  return outcome;
}

double sum(const std::vector<int64_t>& values) {
  double total = 0;
  for (const int64_t value : values) total += static_cast<double>(value);
  return total;
}

double lower_bound_ns(const Instance& instance) {
  std::vector<int64_t> work = instance.work, speed = instance.speed;
  std::sort(work.rbegin(), work.rend());
  std::sort(speed.rbegin(), speed.rend());
  double bound = sum(work) / sum(speed) * 1e6;
  double some_work = 0, some_speed = 0;
  for (size_t k = 0; k < std::min(work.size(), speed.size()); ++k) {
    some_work += static_cast<double>(work[k]);
    some_speed += static_cast<double>(speed[k]);
    bound = std::max(bound, some_work / some_speed * 1e6);
  }
  return bound;
}

TEST_CASE("pulling keeps its bound on 10,000 random instances, whatever the costs and speeds") {
  const uint64_t seed = 20240611;
  MESSAGE("seed " << seed);
  std::mt19937_64 random(seed);
  double worst = 0;
  for (int i = 0; i < 10'000; ++i) {
    CAPTURE(i);
    Instance instance;
    const size_t loaders = 1 + random() % 12;
    const size_t chunks = 1 + random() % 80;
    const uint64_t spread = 1 + random() % 1000;
    for (size_t k = 0; k < loaders; ++k) instance.speed.push_back(static_cast<int64_t>(10 + random() % (10 * spread)));
    for (size_t k = 0; k < chunks; ++k) {
      // Every third instance has a heavy tail: a few chunks are most of the work.
      const uint64_t tail = i % 3 == 0 && random() % 10 == 0 ? 100 : 1;
      instance.work.push_back(static_cast<int64_t>((100'000 + random() % (100'000 * spread)) * tail));
    }
    instance.streams = static_cast<int64_t>(1 + random() % std::min<size_t>(3, chunks));
    const Outcome outcome = run(instance, random() % 2 == 0);
    REQUIRE(outcome.chunks == chunks);
    const double all_speed = sum(instance.speed) / 1e6;
    const double fluid = sum(instance.work) / all_speed;
    const double bound = fluid + outcome.last_work * (1 / outcome.last_speed - 1 / all_speed);
    const double rounding = static_cast<double>(chunks + 1);  // each time is rounded down to a nanosecond
    REQUIRE(outcome.makespan_ns <= bound + rounding);
    REQUIRE(outcome.makespan_ns >= lower_bound_ns(instance) - rounding);
    worst = std::max(worst, outcome.makespan_ns / bound);
  }
  CHECK(worst > 0.99);  // the bound is met by some: the test looks at something
}

TEST_CASE("with 100 chunks a loader, speeds up to 4:1 and costs up to 3:1, C is within 2 % of the lower bound") {
  const uint64_t seed = 77;
  MESSAGE("seed " << seed);
  std::mt19937_64 random(seed);
  double worst = 0;
  for (int i = 0; i < 300; ++i) {
    CAPTURE(i);
    Instance instance;
    const size_t loaders = 2 + random() % 30;
    for (size_t k = 0; k < loaders; ++k) instance.speed.push_back(static_cast<int64_t>(1000 + random() % 3001));
    for (size_t k = 0; k < 100 * loaders; ++k) {
      instance.work.push_back(static_cast<int64_t>(1'000'000 + random() % 2'000'001));
    }
    const double ratio = run(instance, true).makespan_ns / lower_bound_ns(instance);
    REQUIRE(ratio <= 1.02);
    worst = std::max(worst, ratio);
  }
  MESSAGE("worst C / LB " << worst);
}

}  // namespace
}  // namespace penstock
