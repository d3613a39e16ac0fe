// Samples of a pack in their order, made by several threads (pack_samples.h), taken by one.
//
//   PackMakers makers(input, content, limits, threads, first);
//   while (index < input.size()) {
//     if (const auto made = makers.take()) ...       // sample number `index`; nothing: not made yet, ask again
//   }
//
// Memory: a thread does not begin a sample while kMostHeldBytes of made ones wait to be taken, but for the next one.
// Thread-safety: take() from one thread. Threads are joined by the destructor, which waits for the samples in the
// making. Failure: take() rethrows what a thread met; Error(runtime) where there is not one thread to be had.
#pragma once

#include <exception>
#include <optional>
#include <thread>
#include <vector>

#include "launch/pack_samples.h"
#include "runtime/base/thread_annotations.h"

namespace penstock {

class PackMakers {
 public:
  static constexpr uint64_t kMostHeldBytes = uint64_t{256} << 20;

  // `threads` 0: one per core. `input` must outlive the object.
  PackMakers(const PackInput& input, const PackContent& content, const DecodeLimits& limits, int threads,
             int64_t first);
  ~PackMakers();
  PackMakers(const PackMakers&) = delete;
  PackMakers& operator=(const PackMakers&) = delete;

  // The next sample; waits for it a fifth of a second at most.
  std::optional<PackedSample> take();

 private:
  // -1: there is none left.
  int64_t claim();
  void work();
  void stop();

  const PackInput& input_;
  PackContent content_;
  DecodeLimits limits_;
  Mutex mutex_;
  CondVar changed_;
  std::vector<std::optional<PackedSample>> slots_ PENSTOCK_GUARDED_BY(mutex_);
  int64_t next_ PENSTOCK_GUARDED_BY(mutex_);
  int64_t written_ PENSTOCK_GUARDED_BY(mutex_);
  uint64_t held_ PENSTOCK_GUARDED_BY(mutex_) = 0;
  bool stop_ PENSTOCK_GUARDED_BY(mutex_) = false;
  std::exception_ptr error_ PENSTOCK_GUARDED_BY(mutex_);
  std::vector<std::jthread> pool_;  // last: its threads end first
};

}  // namespace penstock
