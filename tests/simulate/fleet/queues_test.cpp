// The queues of a simulated fleet against formulas that are exact: D/D/1, M/M/k and M/G/1 (Kleinrock, "Queueing Systems",
// volume 1, 1975), and Little's law. With PENSTOCK_FULL=1 every number of servers and service at every load.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <queue>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/simulate/distribution.h"
#include "runtime/simulate/fleet/little_law.h"
#include "runtime/simulate/fleet/server_pool.h"
#include "runtime/simulate/seeded_random.h"

namespace penstock {
namespace {

const bool kFull = std::getenv("PENSTOCK_FULL") != nullptr;

struct Estimate {
  double mean = 0;
  double half_width = 0;  // of its 95 % interval, from means of long batches
};

Estimate estimate(const std::vector<double>& batches) {
  const auto n = static_cast<double>(batches.size());
  double mean = 0, squares = 0;
  for (const double one : batches) mean += one / n;
  for (const double one : batches) squares += (one - mean) * (one - mean);
  return {mean, 2.05 * std::sqrt(squares / (n - 1) / n)};  // Student's t, 29 degrees of freedom
}

// The mean time in the queue, in 30 batches of customers after a first one that is left out.
Estimate time_in_queue(int servers, const Distribution& between, const Distribution& service, uint64_t seed) {
  constexpr int kBatches = 30;
  constexpr int kCustomers = 60'000;
  SeededRandom random(seed);
  ServerPool pool(servers);
  const SpeedProfile full;
  LittleLaw inside;
  struct Leaves {
    Nanoseconds at, came;
    bool operator>(const Leaves& other) const { return at > other.at; }
  };
  std::priority_queue<Leaves, std::vector<Leaves>, std::greater<>> leaving;
  const auto leave_until = [&](Nanoseconds now) {
    for (; !leaving.empty() && leaving.top().at <= now; leaving.pop())
      inside.leave(leaving.top().at, leaving.top().came);
  };
  Nanoseconds now = 0;
  std::vector<double> batches;
  for (int batch = 0; batch <= kBatches; ++batch) {
    double waited = 0;
    for (int i = 0; i < kCustomers; ++i) {
      now += between.draw(random);
      leave_until(now);
      inside.enter(now);
      const Service one = pool.serve(now, service.draw(random), full);
      waited += static_cast<double>(one.begin - now);
      leaving.push({one.end, now});
    }
    if (batch > 0) batches.push_back(waited / kCustomers);
  }
  leave_until(kNever);
  inside.check("customers");
  return estimate(batches);
}

// Erlang's C: the chance that all of k servers are busy, at `load` Erlangs.
double erlang_c(int k, double load) {
  double term = 1, sum = 1;
  for (int n = 1; n < k; ++n) sum += term *= load / n;
  const double last = term * load / k / (1 - load / k);
  return last / (sum + last);
}

TEST_CASE(
    "D/D/1: nobody waits below full load, and above it each waits so much longer than the one before, to the "
    "nanosecond") {
  const SpeedProfile full;
  ServerPool below, above;
  for (int64_t i = 0; i < 1000; ++i) {
    const Service one = below.serve(i * 100, 99, full);
    CHECK(one.begin == i * 100);
    CHECK(one.end == i * 100 + 99);
    CHECK(above.serve(i * 100, 103, full).begin == i * 103);
  }
}

TEST_CASE("M/M/k: the time in the queue is Erlang's") {
  const double service = 1e6;
  for (const int k : {1, 2, 8, 40}) {
    for (const double share : {0.5, 0.8, 0.9}) {
      if (!kFull && share != (k == 1 ? 0.5 : k == 8 ? 0.9 : 0.8)) continue;
      const double between = service / (k * share);
      const double wanted = erlang_c(k, k * share) * service / k / (1 - share);
      const uint64_t seed = 100 + static_cast<uint64_t>(k);
      const Estimate got =
          time_in_queue(k, Distribution::exponential(between), Distribution::exponential(service), seed);
      MESSAGE(k << " servers at " << share << ": " << got.mean << " +- " << got.half_width << " ns, formula " << wanted
                << ", seed " << seed);
      CHECK(std::abs(got.mean - wanted) <= 2 * got.half_width);  // one in 10,000 intervals of that width misses
      CHECK(got.half_width <= 0.15 * wanted + 0.01 * service);
    }
  }
}

TEST_CASE("M/G/1: the time in the queue is Pollaczek's and Khinchine's") {
  struct Case {
    const char* name;
    Distribution service;
    double second_moment;  // over the mean's square
  };
  const double sigma = 0.7;
  const std::vector<Case> cases = {
      {"constant", Distribution::constant(1'000'000), 1},
      {"uniform", Distribution::empirical({{0, 0}, {1, 2'000'000}}), 4.0 / 3},
      {"exponential", Distribution::exponential(1e6), 2},
      {"lognormal", Distribution::lognormal(1e6, sigma), std::exp(sigma * sigma)},
  };
  for (const Case& one : cases) {
    for (const double share : {0.3, 0.7, 0.85}) {
      if (!kFull && share != (one.second_moment == 2 ? 0.3 : one.second_moment > 1.5 ? 0.7 : 0.85)) continue;
      const double mean = one.service.mean();
      const double wanted = share / (1 - share) * mean / 2 * one.second_moment;
      const Estimate got = time_in_queue(1, Distribution::exponential(mean / share), one.service, 7);
      MESSAGE(std::string(one.name) << " at " << share << ": " << got.mean << " +- " << got.half_width
                                    << " ns, formula " << wanted << ", seed 7");
      CHECK(std::abs(got.mean - wanted) <= 2 * got.half_width);
      CHECK(got.half_width <= 0.1 * wanted);
    }
  }
}

TEST_CASE("Little's law finds one that is lost, doubled or given a wrong time") {
  LittleLaw good;
  good.enter(0);
  good.enter(10);
  good.leave(30, 0);
  good.leave(50, 10);
  good.check("leases");
  LittleLaw wrong = good;
  wrong.enter(60);
  CHECK_THROWS_WITH_AS(wrong.check("leases"), doctest::Contains("lost count of its leases: 1 are left"), Error);
  wrong.leave(70, 61);
  CHECK_THROWS_AS(wrong.check("leases"), Error);
}

}  // namespace
}  // namespace penstock
