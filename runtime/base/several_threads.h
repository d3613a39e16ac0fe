// The same work on several threads, the caller's among them.
//
//   std::atomic<size_t> next{0};
//   work_on_threads(8, [&] { for (size_t i = next++; i < count; i = next++) ...; });
//
// Returns once all of them have. A limit on threads (of a container, `ulimit -u`) makes them fewer, and the work
// slower. Thread-safety: `work` runs on all of them at a time. Failure: none; `work` keeps its exceptions to itself.
#pragma once

#include <cstddef>
#include <system_error>
#include <thread>
#include <vector>

namespace penstock {

template <class Work>
void work_on_threads(size_t threads, const Work& work) {
  std::vector<std::jthread> helpers;
  helpers.reserve(threads);
  try {
    while (helpers.size() + 1 < threads) helpers.emplace_back(work);
  } catch (const std::system_error&) {
  }
  work();
}

}  // namespace penstock
