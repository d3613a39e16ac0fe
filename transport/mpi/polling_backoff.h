// When the progress thread looks again, after it found that nothing moves. MPI can only be asked, so somebody must
// sleep and look; and every sleep's end interrupts a thread that decodes, so sleeps that are too short cost a busy node
// a few per cent of its cores, while sleeps that are too long let chunks wait.
//
//   if (peers did anything) backoff.moved(clock.now());
//   if (this rank sent anything) backoff.sent(clock.now());
//   // so long; or until an order comes, where backoff.order_wakes()
//   sleep(backoff.next(requests_that_only_calls_move_on, clock.now()));
//
// While requests are under way that only MPI calls move on, sleeps double from 20 to 200 us, and what a TCP socket
// buffers lasts longer than that. Otherwise there is nothing to do before the peer does something. Peers act at
// intervals, which are learned: the first sleep is half of the mean interval, and sleeps double up to 2 ms. Small
// pictures, whose messages come every 100 us, get short sleeps; chunks of photos, milliseconds apart, get long ones.
// After a quarter of a second without traffic (a pause, or everything goes by shared memory) sleeps are 10 ms.
//
// Orders of this rank wait for a sleep's end, but for the 10 ms ones: what a chunk needs (itself, its result, its chunk
// buffer, the next lease) would otherwise be four wakings. So a message takes up to kDelay, on average, while there is
// traffic, and loaders hold leases that last for the round trip (runtime/loader/leases_in_transit.h).
// Pure: time is what the caller says. Not thread-safe.
#pragma once

#include <algorithm>

#include "runtime/base/clock.h"

namespace penstock::mpi {

class PollingBackoff {
  static constexpr Nanoseconds kShortest = 20 * kMicrosecond, kLongestDriving = 200 * kMicrosecond;
  static constexpr Nanoseconds kLongest = 2 * kMillisecond;
  static constexpr Nanoseconds kSilence = 250 * kMillisecond, kSilentSleep = 10 * kMillisecond;
  static constexpr Nanoseconds kLongestInterval = 10 * kMillisecond;  // a pause is not how peers act when they do

 public:
  // The mean delay of a message where sleeps are longest: half of the sender's and half of the receiver's.
  static constexpr Nanoseconds kDelay = kLongest;

  void moved(Nanoseconds now) noexcept {
    if (slept_) {  // the first of a burst; what comes with it is no interval
      const Nanoseconds interval = std::min(now - burst_at_, kLongestInterval);
      mean_interval_ += (interval - mean_interval_) / 8;
      burst_at_ = now;
    }
    slept_ = false;
    last_move_ = now;
    sleep_ = 0;
  }

  // Peers may answer, so this is no silence; but it says nothing of when they act.
  void sent(Nanoseconds now) noexcept {
    if (now - last_move_ > kSilence) sleep_ = 0;
    last_move_ = now;
  }

  Nanoseconds next(bool driving, Nanoseconds now) noexcept {
    slept_ = true;
    if (driving) return sleep_ = std::clamp(sleep_ * 2, kShortest, kLongestDriving);
    if (now - last_move_ > kSilence) return sleep_ = kSilentSleep;
    const Nanoseconds first = std::clamp(mean_interval_ / 2, kShortest, kLongest);
    return sleep_ = std::clamp(sleep_ * 2, first, kLongest);
  }

  // Whether an order is to end the sleep that next() gave.
  bool order_wakes() const noexcept { return sleep_ > kLongest; }

 private:
  Nanoseconds sleep_ = 0;
  Nanoseconds mean_interval_ = 0;
  Nanoseconds burst_at_ = 0;
  Nanoseconds last_move_ = 0;
  bool slept_ = false;
};

}  // namespace penstock::mpi
