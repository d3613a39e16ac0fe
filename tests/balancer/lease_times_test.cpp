#include "runtime/balancer/lease_times.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

namespace penstock {
namespace {

TEST_CASE("nothing is said of few leases") {
  LeaseTimes times;
  for (int i = 0; i < 99; ++i) times.observe(1000);
  CHECK(times.p99_ns() == 0);
  times.observe(1000);
  CHECK(times.p99_ns() > 0);
}

TEST_CASE("p99 is at least the sorted list's, and at most a quarter more") {
  for (const uint64_t seed : {1, 2, 3, 4, 5}) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    std::lognormal_distribution<double> around(17, 1.0);  // 24 ms in the middle
    LeaseTimes times;
    std::vector<int64_t> all;
    for (int i = 0; i < 3000; ++i) {
      all.push_back(static_cast<int64_t>(around(random)));
      times.observe(all.back());
    }
    std::sort(all.begin(), all.end());
    const int64_t exact = all[all.size() - 1 - all.size() / 100];
    CHECK(times.p99_ns() >= exact);
    CHECK(times.p99_ns() <= exact + exact / 4 + 1);
  }
}

TEST_CASE("the past is forgotten within some thousand leases") {
  LeaseTimes times;
  for (int i = 0; i < 4000; ++i) times.observe(1'000'000'000);
  for (int i = 0; i < 40'000; ++i) times.observe(1'000'000);
  CHECK(times.p99_ns() <= 1'250'000);
}

TEST_CASE("the smallest and the largest times are taken") {
  LeaseTimes times;
  for (int i = 0; i < 200; ++i) times.observe(i % 2 == 0 ? 0 : INT64_MAX);
  CHECK(times.p99_ns() > 0);
}

}  // namespace
}  // namespace penstock
