// How fast something works over time: work and time in nanoseconds, speed 1 being one nanosecond of work in each of time.
//
//   SpeedProfile speed({{0, kFullSpeed}, {5 * kSecond, 0}, {8 * kSecond, kFullSpeed / 2}});   // stopped for 3 seconds
//   const Nanoseconds end = speed.finish(begun, work);                                       // kNever: it never ends
//
// Purpose: what slows a process down or stops it (a quota, a neighbour, SIGSTOP) is drawn before a simulated job begins,
//   so the end of a piece of work is known when it begins, and no event has to be taken back.
// Exact: whole numbers, and what is left of a nanosecond counts as one.
// Thread-safety: values. Failure: Error(usage) for changes that are out of order, negative, or of more than 1,000 times.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "runtime/base/clock.h"

namespace penstock {

inline constexpr int64_t kFullSpeed = 1'000'000;  // speeds are millionths
inline constexpr Nanoseconds kNever = std::numeric_limits<Nanoseconds>::max();

class SpeedProfile {
 public:
  struct Change {
    Nanoseconds at = 0;
    int64_t speed = kFullSpeed;  // from then on

    friend bool operator==(const Change&, const Change&) = default;
  };
  SpeedProfile() : SpeedProfile({{0, kFullSpeed}}) {}
  // Before the first change speed is 1.
  explicit SpeedProfile(std::vector<Change> changes);

  // When `work` is done that begins at `begin`; work of nothing ends as soon as the speed is above 0.
  Nanoseconds finish(Nanoseconds begin, Nanoseconds work) const;
  int64_t at(Nanoseconds when) const;
  SpeedProfile times(double factor) const;
  // The same, but from one time until the other so many times as fast; kNever: for good.
  SpeedProfile during(Nanoseconds begin, Nanoseconds end, double factor) const;
  // The work that is done from one time to the other.
  Nanoseconds work(Nanoseconds begin, Nanoseconds end) const;

 private:
  size_t place(Nanoseconds when) const;  // of the change that holds then

  std::vector<Change> changes_;
};

}  // namespace penstock
