// Some servers with one queue, first come first served: the threads of a loader, an event loop, a disk.
//
//   ServerPool threads(4);
//   const Service one = threads.serve(arrived, work, speed);   // {begin, end}; calls come in the order of arrival
//   threads.first_free();                                      // when the next one could begin
//
// Purpose: the times of a queue without an event for each piece of work. With one queue in order, whoever comes next is
//   served by the server that is free first, so its times follow from the servers' alone (Kiefer and Wolfowitz, "On the
//   theory of queues with many servers", 1955).
// Thread-safety: values. Failure: none.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/simulate/fleet/speed_profile.h"

namespace penstock {

struct Service {
  Nanoseconds begin = 0;
  Nanoseconds end = 0;  // kNever: it is begun, and never done
};

class ServerPool {
 public:
  explicit ServerPool(int servers = 1) : free_at_(static_cast<size_t>(std::max(1, servers)), 0) {}

  // It may begin at `ready`, once a server is free.
  Service serve(Nanoseconds ready, Nanoseconds work, const SpeedProfile& speed) {
    return serve_until(ready, [&](Nanoseconds begin) { return speed.finish(begin, work); });
  }
  // The same where its end follows from when it begins: `end_of(begin)`.
  template <class EndOf>
  Service serve_until(Nanoseconds ready, EndOf&& end_of) {
    std::pop_heap(free_at_.begin(), free_at_.end(), std::greater<>());
    Nanoseconds& free_at = free_at_.back();
    const Nanoseconds begin = std::max(ready, free_at);
    const Nanoseconds end = begin == kNever ? kNever : end_of(begin);
    free_at = end;
    std::push_heap(free_at_.begin(), free_at_.end(), std::greater<>());
    return {begin, end};
  }
  Nanoseconds first_free() const noexcept { return free_at_.front(); }
  Nanoseconds all_free() const { return *std::max_element(free_at_.begin(), free_at_.end()); }

 private:
  std::vector<Nanoseconds> free_at_;  // a heap, the earliest first
};

}  // namespace penstock
