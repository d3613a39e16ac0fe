// Things that are done one by one, on several threads, the caller's among them.
//
//   for_each_on_threads(count, 8, [&] { return [&, examiner = Examiner()](size_t i) mutable { ...; }; });
//
// Returns once all are done. Each thread calls `make_worker` once, and what that gives with the numbers that it takes.
// A limit on threads (of a container, `ulimit -u`) makes them fewer, and the work slower.
// Thread-safety: workers run at a time. Failure: after an exception no more is begun, and that of the least number comes
//   out: the same one whatever the threads' timing, as all before it were begun before it.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <system_error>
#include <thread>
#include <vector>

#include "runtime/base/thread_annotations.h"

namespace penstock {

inline size_t number_of_cores() {
  return std::max(1U, std::thread::hardware_concurrency());
}

template <class MakeWorker>
void for_each_on_threads(size_t count, size_t threads, const MakeWorker& make_worker) {
  std::atomic<size_t> next{0};
  Mutex mutex;  // guards these two
  size_t failed = count + 1;
  std::exception_ptr failure;
  const auto work = [&] {
    size_t i = count;
    try {
      auto worker = make_worker();
      for (i = next++; i < count; i = next++) worker(i);
    } catch (...) {
      next = count;
      const MutexLock lock(mutex);
      if (i < failed) {
        failed = i;
        failure = std::current_exception();
      }
    }
  };
  {
    std::vector<std::jthread> helpers;
    helpers.reserve(threads);
    try {
      while (helpers.size() + 1 < std::min(threads, count)) helpers.emplace_back(work);
    } catch (const std::system_error&) {
    }
    work();
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace penstock
