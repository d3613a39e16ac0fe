// How many leases a loader wants beyond its depth, because messages take a while each way: as many as its threads work
// off during a round trip.
//
//   LeasesInTransit in_transit(round_trip_ns, threads, most);
//   in_transit.made(work.busy_ns);          // after each chunk: how long one thread would take for it
//   send(LeasesAhead{in_transit.leases()});
//
// A chunk of large photos takes longer than any round trip, one of thumbnails a fraction of it; so what chunks take is
// learned. The number grows as soon as it is too small and shrinks only when half of it would do, because every change
// is a message.
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
