// When work is done by something whose speed changes.
#include "runtime/simulate/fleet/speed_profile.h"

#include <doctest/doctest.h>

#include "runtime/base/error.h"
#include "runtime/simulate/seeded_random.h"

namespace penstock {
namespace {

TEST_CASE("work at full speed takes its time, and at other speeds more or less") {
  CHECK(SpeedProfile().finish(7, 100) == 107);
  CHECK(SpeedProfile({{0, kFullSpeed / 2}}).finish(7, 100) == 207);
  CHECK(SpeedProfile({{0, 3 * kFullSpeed}}).finish(7, 100) == 7 + 34);  // what is left of a nanosecond counts as one
  CHECK(SpeedProfile({{0, 3 * kFullSpeed}}).finish(7, 0) == 7);
}

TEST_CASE("what is stopped goes on where it was") {
  const SpeedProfile speed({{100, 0}, {150, kFullSpeed / 2}, {1000, kFullSpeed}});
  CHECK(speed.finish(50, 50) == 100);
  CHECK(speed.finish(50, 51) == 152);
  CHECK(speed.finish(120, 0) == 150);  // not before it goes on
  CHECK(speed.finish(100, 425 + 3) == 1003);
  CHECK(speed.at(99) == kFullSpeed);
  CHECK(speed.at(100) == 0);
  CHECK(SpeedProfile({{5, 0}}).finish(0, 6) == kNever);
  CHECK(SpeedProfile({{5, 0}}).finish(0, 5) == 5);
}

TEST_CASE("the work that is done until its end is the work, whatever the changes") {
  const uint64_t seed = 25;
  MESSAGE("seed " << seed);
  SeededRandom random(seed);
  for (int i = 0; i < 2000; ++i) {
    std::vector<SpeedProfile::Change> changes;
    Nanoseconds at = 0;
    for (int64_t c = random.below(6); c >= 0; --c) {
      changes.push_back({at, random.chance(20) ? 0 : random.between(1, 4 * kFullSpeed)});
      at += random.between(1, 1000);
    }
    changes.push_back({at, kFullSpeed});
    const SpeedProfile speed(changes);
    const Nanoseconds begin = random.below(2000), work = random.below(3000);
    const Nanoseconds end = speed.finish(begin, work);
    CHECK(speed.work(begin, end) >= work);
    if (work > 0) CHECK(speed.work(begin, end - 1) < work + 1);
  }
}

TEST_CASE("what is slow for a while is so on top of what it was") {
  const SpeedProfile slow = SpeedProfile().during(100, 200, 0.5).during(150, 300, 0.1);
  CHECK(slow.at(99) == kFullSpeed);
  CHECK(slow.at(100) == kFullSpeed / 2);
  CHECK(slow.at(150) == kFullSpeed / 20);
  CHECK(slow.at(200) == kFullSpeed / 10);
  CHECK(slow.at(300) == kFullSpeed);
  CHECK(SpeedProfile().during(5, kNever, 0).finish(0, 6) == kNever);
}

TEST_CASE("changes out of order and negative speeds are refused") {
  CHECK_THROWS_AS(SpeedProfile({{10, 1}, {10, 2}}), Error);
  CHECK_THROWS_AS(SpeedProfile({{10, 1}, {5, 2}}), Error);
  CHECK_THROWS_AS(SpeedProfile({{0, -1}}), Error);
}

}  // namespace
}  // namespace penstock
