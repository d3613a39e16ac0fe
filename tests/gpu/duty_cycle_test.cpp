// A GPU's time, shared with a trainer: in simulated time.
#include "runtime/gpu/duty_cycle.h"

#include <doctest/doctest.h>

#include <random>
#include <vector>

namespace penstock {
namespace {

TEST_CASE("behind a batch the GPU is left alone in proportion") {
  DutyCycle duty(0.25);
  CHECK(duty.limits());
  REQUIRE(duty.may_begin(100));
  duty.begin(100);
  CHECK_FALSE(duty.may_begin(1'000'000));  // one at a time
  duty.end(1100);
  CHECK(duty.free_at() == 4100);
  CHECK_FALSE(duty.may_begin(4099));
  CHECK(duty.may_begin(4100));
}

TEST_CASE("a share of 1 limits nothing, and batches overlap") {
  DutyCycle duty;
  duty.begin(0);
  duty.begin(10);
  CHECK(duty.may_begin(20));
  duty.end(30);
  CHECK(duty.may_begin(30));
}

TEST_CASE("of any length of time batches have their share, and one batch more at most") {
  const uint32_t seed = std::random_device{}();
  CAPTURE(seed);
  std::mt19937 random(seed);
  for (const double share : {0.05, 0.3, 0.5, 0.9}) {
    DutyCycle duty(share);
    std::vector<std::pair<Nanoseconds, Nanoseconds>> batches;
    Nanoseconds longest = 0;
    for (Nanoseconds now = 0; batches.size() < 200;) {
      if (!duty.may_begin(now)) {
        now = duty.free_at();
        continue;
      }
      const Nanoseconds took = 1 + static_cast<Nanoseconds>(random() % 5'000'000);
      duty.begin(now);
      duty.end(now + took);
      batches.emplace_back(now, now + took);
      longest = std::max(longest, took);
      now += took + (random() % 4 == 0 ? static_cast<Nanoseconds>(random() % 20'000'000) : 0);
    }
    for (size_t first = 0; first < batches.size(); ++first) {
      Nanoseconds busy = 0;
      for (size_t last = first; last < batches.size(); ++last) {
        busy += batches[last].second - batches[last].first;
        const auto stretch = static_cast<double>(batches[last].second - batches[first].first);
        REQUIRE(static_cast<double>(busy) <=
                share * stretch + static_cast<double>(longest) + 200);  // nanoseconds cut off
      }
    }
  }
}

}  // namespace
}  // namespace penstock
