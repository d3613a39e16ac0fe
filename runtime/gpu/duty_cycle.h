// How much of a GPU's time a loader takes, where a trainer computes on the same GPU.
//
//   DutyCycle duty(0.3);
//   if (duty.may_begin(now)) duty.begin(now);    // else at free_at(), or when the batch under way has ended
//   ...
//   duty.end(now);
//
//   idle ── begin() ──▶ running ── end() ──▶ resting, until free_at() ──▶ idle
//
// One batch at a time, and behind one that took d nanoseconds the GPU is left alone for d * (1 / share - 1). So of any
//   length of time that begins with a batch and ends with a rest, batches have `share` of it at most, and of any length
//   of time at all, that and one batch. With a share of 1 nothing is limited, and batches overlap.
// Work of others on the GPU makes batches slower, and so the rests longer: the share is of time, not of work done.
// Thread-safety: none. A pure state; the caller has the clock.
#pragma once

#include <algorithm>

#include "runtime/base/clock.h"

namespace penstock {

class DutyCycle {
 public:
  explicit DutyCycle(double share = 1) : share_(share) {}

  bool limits() const noexcept { return share_ < 1; }
  bool may_begin(Nanoseconds now) const noexcept { return !limits() || (!running_ && now >= free_at_); }
  bool running() const noexcept { return running_; }
  Nanoseconds free_at() const noexcept { return free_at_; }

  void begin(Nanoseconds now) noexcept {
    if (!limits()) return;
    running_ = true;
    begun_ = now;
  }
  void end(Nanoseconds now) noexcept {
    if (!limits()) return;
    running_ = false;
    const Nanoseconds took = std::max<Nanoseconds>(0, now - begun_);
    free_at_ = now + static_cast<Nanoseconds>(static_cast<double>(took) * (1 / share_ - 1));
  }

 private:
  double share_;
  bool running_ = false;
  Nanoseconds begun_ = 0;
  Nanoseconds free_at_ = 0;
};

}  // namespace penstock
