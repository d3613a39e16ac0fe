// Work on several threads, also where the system gives fewer of them than are asked for.
#include "runtime/base/several_threads.h"

#include <dlfcn.h>
#include <doctest/doctest.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <stdexcept>
#include <string>

namespace {

std::atomic<int> threads_left{1000};
std::atomic<int> refused{0};

}  // namespace

// Sanitizers have a pthread_create of their own.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define HAVE_LIMIT 1
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*), void* what) {
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto real = reinterpret_cast<Create>(::dlsym(RTLD_NEXT, "pthread_create"));
  if (threads_left.fetch_sub(1) > 0) return real(thread, attributes, start, what);
  ++refused;
  return EAGAIN;
}
#endif

using namespace penstock;

namespace {

// How many threads did `count` pieces of work, each of which was done once.
int threads_for(size_t threads, size_t count) {
  std::atomic<size_t> done{0};
  std::atomic<int> took_part{0};
  for_each_on_threads(count, threads, [&] {
    ++took_part;
    return [&](size_t) { ++done; };
  });
  CHECK(done == count);
  return took_part;
}

}  // namespace

TEST_CASE("as many threads as are asked for, the caller's among them") {
  CHECK(threads_for(1, 10) == 1);
  CHECK(threads_for(5, 1000) == 5);
  CHECK(threads_for(0, 3) == 1);
}

TEST_CASE("of several failures the one of the least number comes out, and no more is begun") {
  for (int n = 0; n < 20; ++n) {
    std::atomic<int> begun{0};
    CHECK_THROWS_WITH_AS(for_each_on_threads(100'000, 4,
                                             [&] {
                                               return [&](size_t i) {
                                                 ++begun;
                                                 if (i % 100 == 50) throw std::runtime_error(std::to_string(i));
                                               };
                                             }),
                         "50", std::runtime_error);
    CHECK(begun < 100'000);
  }
}

#ifdef HAVE_LIMIT
TEST_CASE("a limit on threads makes them fewer") {
  for (const int limit : {0, 2}) {
    threads_left = limit;
    refused = 0;
    CHECK(threads_for(8, 1000) == limit + 1);
    CHECK(refused == 1);
  }
  threads_left = 1000;
}
#endif
