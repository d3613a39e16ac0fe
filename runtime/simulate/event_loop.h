// Virtual time: what is to happen, in the order of its time, in one thread.
//
//   EventLoop loop;
//   loop.after(5 * kMillisecond, [&] { ... });    // events of one time happen in the order in which they were added
//   while (loop.now() < limit && loop.step()) {}
//   Loader loader({.seams = {.clock = &loop.clock()}}, ...);
//
// Purpose: production code under simulated faults, and plans of jobs that would take hours. Times are integers in
//   nanoseconds, so a run is the same on every machine.
// Thread-safety: none. Ownership: the events. Failure: what an event throws comes out of step().
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "runtime/base/clock.h"

namespace penstock {

class EventLoop {
 public:
  Nanoseconds now() const noexcept { return clock_.now(); }
  const Clock& clock() const noexcept { return clock_; }

  // A time that is over means now.
  void at(Nanoseconds when, std::function<void()> event) {
    events_.emplace(std::pair(std::max(when, now()), next_++), std::move(event));
  }
  void after(Nanoseconds delay, std::function<void()> event) { at(now() + delay, std::move(event)); }

  // False: nothing is left to happen.
  bool step() {
    if (events_.empty()) return false;
    auto first = events_.extract(events_.begin());
    clock_.advance(first.key().first - now());
    first.mapped()();
    return true;
  }

 private:
  ManualClock clock_;
  uint64_t next_ = 0;
  std::map<std::pair<Nanoseconds, uint64_t>, std::function<void()>> events_;
};

}  // namespace penstock
