// Quantiles of many times in little memory.
#include "runtime/simulate/fleet/wait_times.h"

#include <doctest/doctest.h>

#include <vector>

#include "runtime/simulate/seeded_random.h"

namespace penstock {
namespace {

TEST_CASE("quantiles are within three in a hundred, mean and largest exact") {
  SeededRandom random(3);
  WaitTimes waits;
  std::vector<Nanoseconds> all;
  for (int i = 0; i < 20000; ++i) {
    const Nanoseconds time = random.below(int64_t{1} << random.between(1, 45));
    waits.add(time);
    all.push_back(time);
  }
  std::sort(all.begin(), all.end());
  double sum = 0;
  for (const Nanoseconds time : all) sum += static_cast<double>(time);
  CHECK(waits.mean() == doctest::Approx(sum / 20000));
  CHECK(waits.most() == all.back());
  for (const double share : {0.0, 0.1, 0.5, 0.9, 0.99, 0.999, 1.0}) {
    const Nanoseconds exact = all[std::min(all.size() - 1, static_cast<size_t>(share * 20000))];
    CHECK(waits.quantile(share) >= exact);
    CHECK(static_cast<double>(waits.quantile(share)) <= std::max(1023.0, 1.0326 * static_cast<double>(exact)));
  }
}

TEST_CASE("of none everything is 0, and two are added") {
  WaitTimes none, one;
  CHECK(none.quantile(0.5) == 0);
  one.add(5 * kMillisecond);
  none.add(one);
  CHECK(none.quantile(0.5) == 5 * kMillisecond);
  CHECK(none.share_above(kMillisecond) == 1);
  CHECK(none.share_above(kSecond) == 0);
}

}  // namespace
}  // namespace penstock
