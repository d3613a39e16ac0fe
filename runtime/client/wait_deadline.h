// How long a client waits for an answer of its receiver, and for whom: the loaders, or its own program.
//
//   WaitDeadline wait_deadline(clock, job.longest_wait_ns());
//   switch (wait_deadline.look(holds_all, gives_back)) ...   // every few milliseconds of the wait
//   if (wait_deadline.callback_due()) while_waiting();       // a few times a second
//
//   waiting for loaders --the program holds all batches--> waiting for the program
//        |      ^------------one was given back-------------------'  |
//        '--timeout--> loaders_late           its own limit--> program_late
//
// The loaders' time begins anew when there is room: while the program holds all batches they cannot deliver. How long
//   it may go on holding them: as long as the loaders have, where it has given back any of this iteration (another
//   thread of its may be about to); a few seconds where it has not, as `list(loader)` need not wait for
//   trainer.timeout_s.
// Thread-safety: of one thread. Ownership: `clock` must outlive it. Failure: none; the caller says what a limit means.
#pragma once

#include <algorithm>
#include <optional>

#include "runtime/base/clock.h"

namespace penstock {

class WaitDeadline {
 public:
  enum class WaitOutcome { wait, loaders_late, program_late };

  static constexpr Nanoseconds kCallbackInterval = 50 * kMillisecond;
  static constexpr Nanoseconds kGivesNoneBack = 5 * kSecond;

  WaitDeadline(const Clock& clock, Nanoseconds timeout_ns)
      : clock_(clock),
        timeout_(timeout_ns),
        deadline_(clock.now() + timeout_ns),
        next_callback_(clock.now() + kCallbackInterval) {}

  // Does the program hold all batches that the iteration can give, and has it given back one of the iteration?
  WaitOutcome look(bool holds_all, bool gives_back) {
    const Nanoseconds now = clock_.now();
    if (!holds_all) return now > deadline_ ? WaitOutcome::loaders_late : WaitOutcome::wait;
    if (!held_since_) held_since_ = now;
    deadline_ = now + timeout_;
    const Nanoseconds limit = gives_back ? timeout_ : std::min(kGivesNoneBack, timeout_);
    return now > *held_since_ + limit ? WaitOutcome::program_late : WaitOutcome::wait;
  }
  Nanoseconds limit_ns() const { return timeout_; }
  // True once every kCallbackInterval.
  bool callback_due() {
    if (clock_.now() <= next_callback_) return false;
    next_callback_ = clock_.now() + kCallbackInterval;
    return true;
  }

 private:
  const Clock& clock_;
  Nanoseconds timeout_;
  Nanoseconds deadline_;
  Nanoseconds next_callback_;
  std::optional<Nanoseconds> held_since_;  // that the receiver has said so, in this wait
};

}  // namespace penstock
