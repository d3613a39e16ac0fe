// When the thread that speaks MPI looks again: pure, so that nobody has to sleep here, and no MPI is needed.
#include "transport/mpi/polling_backoff.h"

#include <doctest/doctest.h>

namespace penstock::mpi {
namespace {

// How often the thread looks in vain while peers act every `interval`, at the end of `count` of them.
int looks_between(PollingBackoff& backoff, Nanoseconds& now, Nanoseconds interval, int count) {
  int looks = 0;
  for (int i = 0; i < count; ++i) {
    looks = 0;
    const Nanoseconds next = now + interval;
    while (now < next) {
      now += backoff.next(false, now);
      ++looks;
    }
    backoff.moved(now);
  }
  return looks;
}

TEST_CASE("chunks some milliseconds apart are looked for every two milliseconds, not every 20 us") {
  PollingBackoff backoff;
  Nanoseconds now = kSecond;
  backoff.moved(now);
  CHECK(looks_between(backoff, now, 5 * kMillisecond, 100) <= 4);
}

TEST_CASE("messages in quick succession are not kept waiting for longer than they are apart") {
  PollingBackoff backoff;
  Nanoseconds now = kSecond;
  backoff.moved(now);
  looks_between(backoff, now, 5 * kMillisecond, 100);
  for (int i = 0; i < 100; ++i) looks_between(backoff, now, 100 * kMicrosecond, 1);
  const Nanoseconds before = now;
  looks_between(backoff, now, 100 * kMicrosecond, 1);
  CHECK(now - before <= 200 * kMicrosecond);
}

TEST_CASE("while requests are under way that only calls move on no sleep is longer than 200 us") {
  PollingBackoff backoff;
  backoff.moved(kSecond);
  Nanoseconds now = kSecond, longest = 0;
  for (int i = 0; i < 10000; ++i) {
    const Nanoseconds sleep = backoff.next(true, now);
    now += sleep;
    longest = std::max(longest, sleep);
  }
  CHECK(longest == 200 * kMicrosecond);
}

TEST_CASE(
    "orders wait for a sleep's end while there is traffic, which is 2 ms at most, and end the sleeps of silence") {
  PollingBackoff backoff;
  Nanoseconds now = kSecond;
  backoff.moved(now);
  for (const bool driving : {false, true}) {
    for (int i = 0; i < 20; ++i) {
      const Nanoseconds sleep = backoff.next(driving, now);
      now += sleep;
      CHECK(sleep <= 2 * kMillisecond);
      CHECK(!backoff.order_wakes());
    }
  }
  now += kSecond;
  CHECK(backoff.next(false, now) == 10 * kMillisecond);
  CHECK(backoff.order_wakes());
}

TEST_CASE("what this rank sends ends the silence, and says nothing of the intervals at which peers act") {
  PollingBackoff backoff;
  Nanoseconds now = kSecond;
  backoff.moved(now);
  looks_between(backoff, now, 5 * kMillisecond, 100);
  const Nanoseconds first = backoff.next(false, now);
  for (int i = 0; i < 100; ++i) {
    now += 10 * kMicrosecond;
    backoff.sent(now);
  }
  backoff.moved(now);
  CHECK(backoff.next(false, now) >= first * 3 / 4);
  now += kSecond;
  CHECK(backoff.next(false, now) == 10 * kMillisecond);
  backoff.sent(now);
  CHECK(backoff.next(false, now) <= 2 * kMillisecond);
}

TEST_CASE("after silence sleeps are long, and traffic makes them short again") {
  PollingBackoff backoff;
  Nanoseconds now = kSecond;
  backoff.moved(now);
  for (int i = 0; i < 1000; ++i) now += backoff.next(false, now);
  CHECK(backoff.next(false, now) == 10 * kMillisecond);
  backoff.moved(now);
  CHECK(backoff.next(false, now) <= 2 * kMillisecond);
}

}  // namespace
}  // namespace penstock::mpi
