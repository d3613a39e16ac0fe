// Which batches a client's program has given back: whether it will give back another is what a wait depends on.
//
//   returned.begin(iteration, pool);                         // an iteration, and the pool its batches lie in
//   returned.count(iteration, pool);                         // any thread, as often as a batch is dropped
//   // the receiver: every batch of the iteration's pool is held
//   returned.all_held(iteration);
//   returned.delivered(iteration);                           // no longer, as here is one
//   if (returned.still_all_held(iteration)) ...              // and none has gone back to the pool since
//   if (returned.any_of(iteration)) ...                      // of this very iteration
//   returned.end(iteration);
//
// Whose batches count: to make room, any of the pool, an earlier iteration's as well; to show that the program lets go
//   of batches, only those of the iteration that waits: an epoch that was taken as it should be says nothing about
//   list(loader).
// Its lock is held for a few instructions and nothing else is locked inside, so destructors may wait for it.
// Thread-safety: everything from any thread. Ownership: none. Failure: std::bad_alloc from begin() alone.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "runtime/base/thread_annotations.h"

namespace penstock {

class ReturnedBatches {
 public:
  void begin(uint64_t iteration, int32_t pool) {
    MutexLock lock(mutex_);
    iterations_[iteration] = {pool, 0, std::nullopt};
    of_pool_.try_emplace(pool, 0);
  }
  void end(uint64_t iteration) noexcept {
    MutexLock lock(mutex_);
    iterations_.erase(iteration);
  }
  void count(uint64_t iteration, int32_t pool) noexcept {
    MutexLock lock(mutex_);
    if (const auto it = of_pool_.find(pool); it != of_pool_.end()) ++it->second;
    if (const auto it = iterations_.find(iteration); it != iterations_.end()) ++it->second.returned;
  }

  void all_held(uint64_t iteration) noexcept {
    MutexLock lock(mutex_);
    if (const auto it = iterations_.find(iteration); it != iterations_.end())
      it->second.when_held = of_pool_.at(it->second.pool);
  }
  void delivered(uint64_t iteration) noexcept {
    MutexLock lock(mutex_);
    if (const auto it = iterations_.find(iteration); it != iterations_.end()) it->second.when_held.reset();
  }
  bool still_all_held(uint64_t iteration) const noexcept {
    MutexLock lock(mutex_);
    const auto it = iterations_.find(iteration);
    return it != iterations_.end() && it->second.when_held == of_pool_.at(it->second.pool);
  }
  bool any_of(uint64_t iteration) const noexcept {
    MutexLock lock(mutex_);
    const auto it = iterations_.find(iteration);
    return it != iterations_.end() && it->second.returned != 0;
  }

 private:
  struct Iteration {
    int32_t pool = 0;
    int64_t returned = 0;  // batches of this iteration
    // of the pool, when the receiver said that all are held; a batch that comes ends it
    std::optional<int64_t> when_held;
  };
  mutable Mutex mutex_;
  std::map<uint64_t, Iteration> iterations_ PENSTOCK_GUARDED_BY(mutex_);
  std::map<int32_t, int64_t> of_pool_ PENSTOCK_GUARDED_BY(mutex_);
};

}  // namespace penstock
