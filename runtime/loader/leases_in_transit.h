// How many leases more than its depth a loader wants, because what it says and what it is told lie on their way for a
// while: the way's length in work.
//
//   LeasesInTransit way(round_trip_ns, threads, most);
//   way.made(work.busy_ns);          // after each chunk: how long one thread would take for it
//   send(LeasesAhead{way.leases()});
//
// Chunks of large photos last longer than any way, and thumbnails a fraction of it; so what chunks take is learned. The
// number grows as soon as it is too small and shrinks when half of it would do: every change is a message.
// Pure. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>

#include "runtime/base/clock.h"

namespace penstock {

class LeasesInTransit {
 public:
  LeasesInTransit(Nanoseconds round_trip_ns, int threads, int32_t most) noexcept
      : work_ns_(round_trip_ns * threads), most_(most) {}

  void made(Nanoseconds busy_ns) noexcept {
    if (work_ns_ == 0) return;
    mean_ns_ = mean_ns_ == 0 ? busy_ns : mean_ns_ + (busy_ns - mean_ns_) / 8;
    const Nanoseconds one = std::max<Nanoseconds>(mean_ns_, 1);
    const auto wanted = static_cast<int32_t>(std::min<Nanoseconds>((work_ns_ + one - 1) / one, most_));
    if (wanted > leases_ || 2 * wanted <= leases_) leases_ = wanted;
  }

  int32_t leases() const noexcept { return leases_; }

 private:
  const Nanoseconds work_ns_;  // of one thread, in the time of a round trip
  const int32_t most_;
  Nanoseconds mean_ns_ = 0;
  int32_t leases_ = 0;
};

}  // namespace penstock
