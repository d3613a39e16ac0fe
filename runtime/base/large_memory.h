// A limit on the memory that threads take together for large pictures, so that a few at a time do not take all there is.
//
//   LargeMemory memory(bytes);                     // shared by a loader's threads
//   {
//     LargeMemory::Use use(&memory);               // one picture, in one thread
//     ... take_large(size); ...                    // anywhere below: waits until there is room
//     if (use.any()) ...                           // free here what was taken
//   }                                              // gives it back, and the next picture goes on
//
// The states of one picture:
//
//   nothing taken --take_large()--> in line --first in line, and room, or nobody holds any--> holding --end of Use--> out
//                                                  holding --take_large()--> waits for room, except the eldest holder
//
// A picture that needs more than the whole limit is made alone, because whether a sample can be made must not depend on
//   what others take. So the limit is exceeded by one picture's need at most: that of the eldest holder.
// No deadlock: the eldest holder never waits, and the first in line waits for holders alone. No picture is passed over,
//   because the line keeps its order. A wait in which nobody gives anything back for kWaitLimit is given up.
// Small pictures pay one comparison: take_large() ignores them.
// Thread-safety: LargeMemory from any thread; a Use belongs to the thread that made it. Ownership: LargeMemory outlives
//   its Uses; it counts memory and owns none.
// Failure: take_large() throws Error(runtime) where the wait is given up, or close() was called.
#pragma once

#include <cstdint>
#include <deque>

#include "runtime/base/clock.h"
#include "runtime/base/take_large.h"
#include "runtime/base/thread_annotations.h"

namespace penstock {

class LargeMemory {
 public:
  static constexpr Nanoseconds kWaitLimit = 300 * kSecond;

  explicit LargeMemory(int64_t limit, Nanoseconds wait_limit_ns = kWaitLimit)
      : wait_limit_(wait_limit_ns), limit_(limit) {}
  LargeMemory(const LargeMemory&) = delete;
  LargeMemory& operator=(const LargeMemory&) = delete;

  class Use {
   public:
    explicit Use(LargeMemory* memory) noexcept;  // nullptr: nothing is counted
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    bool any() const noexcept { return held_ != 0; }

   private:
    friend class LargeMemory;
    friend void large_memory_detail::take(size_t bytes);
    LargeMemory* memory_;
    Use* before_;  // this thread's
    int64_t held_ = 0;
  };

  void set_limit(int64_t limit);
  // Ends all waits, and later ones at once, with an Error: called when the loader ends.
  void close() noexcept;

  struct Figures {
    int64_t limit = 0;
    int64_t taken = 0;     // now
    int64_t most = 0;      // at any time
    int64_t pictures = 0;  // that took any
    Nanoseconds waited_ns = 0;
  };
  Figures figures() const;

 private:
  friend void large_memory_detail::take(size_t bytes);
  void take(Use& use, int64_t bytes);
  bool may_take(const Use& use, int64_t bytes) const PENSTOCK_REQUIRES(mutex_);
  bool wait_for_room(const Use& use, int64_t bytes) PENSTOCK_REQUIRES(mutex_);
  void give_back(const Use& use) noexcept;

  const MonotonicClock clock_;
  const Nanoseconds wait_limit_;
  mutable Mutex mutex_;
  CondVar changed_;
  int64_t limit_ PENSTOCK_GUARDED_BY(mutex_);
  std::deque<const Use*> line_ PENSTOCK_GUARDED_BY(mutex_);     // pictures that hold nothing yet
  std::deque<const Use*> holders_ PENSTOCK_GUARDED_BY(mutex_);  // the eldest first
  int growing_ PENSTOCK_GUARDED_BY(mutex_) = 0;                 // holders that wait for more; they go before the line
  uint64_t given_back_ PENSTOCK_GUARDED_BY(mutex_) = 0;         // times
  bool closed_ PENSTOCK_GUARDED_BY(mutex_) = false;
  Figures figures_ PENSTOCK_GUARDED_BY(mutex_);
};

}  // namespace penstock
