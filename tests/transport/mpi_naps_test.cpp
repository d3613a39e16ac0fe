// When the thread that speaks MPI looks again: pure, so that nobody has to sleep here, and no MPI is needed.
#include "transport/mpi/naps.h"

#include <doctest/doctest.h>

namespace penstock::mpi {
namespace {

// How often the thread looks in vain while peers act every `interval`, at the end of `count` of them.
int looks_between(Naps& naps, Nanoseconds& now, Nanoseconds interval, int count) {
  int looks = 0;
  for (int i = 0; i < count; ++i) {
    looks = 0;
    const Nanoseconds next = now + interval;
    while (now < next) {
      now += naps.next(false, now);
      ++looks;
    }
    naps.moved(now);
  }
  return looks;
}

TEST_CASE("chunks some milliseconds apart are looked for every two milliseconds, not every 20 us") {
  Naps naps;
  Nanoseconds now = kSecond;
  naps.moved(now);
  CHECK(looks_between(naps, now, 5 * kMillisecond, 100) <= 4);
}

TEST_CASE("messages in quick succession are not kept waiting for longer than they are apart") {
  Naps naps;
  Nanoseconds now = kSecond;
  naps.moved(now);
  looks_between(naps, now, 5 * kMillisecond, 100);
  for (int i = 0; i < 100; ++i) looks_between(naps, now, 100 * kMicrosecond, 1);
  const Nanoseconds before = now;
  looks_between(naps, now, 100 * kMicrosecond, 1);
  CHECK(now - before <= 200 * kMicrosecond);
}

TEST_CASE("while requests are under way that only calls move on no nap is longer than 200 us") {
  Naps naps;
  naps.moved(kSecond);
  Nanoseconds now = kSecond, longest = 0;
  for (int i = 0; i < 10000; ++i) {
    const Nanoseconds nap = naps.next(true, now);
    now += nap;
    longest = std::max(longest, nap);
  }
  CHECK(longest == 200 * kMicrosecond);
}

TEST_CASE("orders wait for a nap's end while there is traffic, which is 2 ms at most, and end the naps of silence") {
  Naps naps;
  Nanoseconds now = kSecond;
  naps.moved(now);
  for (const bool driving : {false, true}) {
    for (int i = 0; i < 20; ++i) {
      const Nanoseconds nap = naps.next(driving, now);
      now += nap;
      CHECK(nap <= 2 * kMillisecond);
      CHECK(!naps.order_wakes());
    }
  }
  now += kSecond;
  CHECK(naps.next(false, now) == 10 * kMillisecond);
  CHECK(naps.order_wakes());
}

TEST_CASE("what this rank sends ends the silence, and says nothing of the intervals at which peers act") {
  Naps naps;
  Nanoseconds now = kSecond;
  naps.moved(now);
  looks_between(naps, now, 5 * kMillisecond, 100);
  const Nanoseconds first = naps.next(false, now);
  for (int i = 0; i < 100; ++i) {
    now += 10 * kMicrosecond;
    naps.sent(now);
  }
  naps.moved(now);
  CHECK(naps.next(false, now) >= first * 3 / 4);
  now += kSecond;
  CHECK(naps.next(false, now) == 10 * kMillisecond);
  naps.sent(now);
  CHECK(naps.next(false, now) <= 2 * kMillisecond);
}

TEST_CASE("after silence naps are long, and traffic makes them short again") {
  Naps naps;
  Nanoseconds now = kSecond;
  naps.moved(now);
  for (int i = 0; i < 1000; ++i) now += naps.next(false, now);
  CHECK(naps.next(false, now) == 10 * kMillisecond);
  naps.moved(now);
  CHECK(naps.next(false, now) <= 2 * kMillisecond);
}

}  // namespace
}  // namespace penstock::mpi
