// The way of messages in leases: pure, no loader is needed.
#include "runtime/loader/leases_in_transit.h"

#include <doctest/doctest.h>

namespace penstock {
namespace {

int32_t leases_at(LeasesInTransit& way, Nanoseconds busy_ns) {
  for (int i = 0; i < 100; ++i) way.made(busy_ns);
  return way.leases();
}

TEST_CASE("over a transport whose messages do not wait no lease more is wanted") {
  LeasesInTransit way(0, 2, 16);
  CHECK(leases_at(way, kMillisecond) == 0);
}

TEST_CASE("before the first chunk nothing is known, so nothing is asked for") {
  CHECK(LeasesInTransit(3 * kMillisecond, 2, 16).leases() == 0);
}

TEST_CASE("the leases hold work for all threads during a round trip") {
  for (const int threads : {1, 2, 8}) {
    for (const Nanoseconds busy : {700 * kMicrosecond, 2 * kMillisecond, 50 * kMillisecond}) {
      CAPTURE(threads);
      CAPTURE(busy);
      LeasesInTransit way(3 * kMillisecond, threads, 1000);
      const int32_t leases = leases_at(way, busy);
      CHECK(leases * busy >= 3 * kMillisecond * threads);
      CHECK((leases - 1) * busy < 3 * kMillisecond * threads);
    }
  }
}

TEST_CASE("never more leases than there are chunk buffers, however small the pictures") {
  LeasesInTransit way(3 * kMillisecond, 8, 20);
  CHECK(leases_at(way, 0) == 20);
}

TEST_CASE("the number grows at once and shrinks when half would do, so that it says little") {
  LeasesInTransit way(8 * kMillisecond, 1, 16);
  CHECK(leases_at(way, 2 * kMillisecond) == 4);
  CHECK(leases_at(way, 1900 * kMicrosecond) == 5);
  CHECK(leases_at(way, 3 * kMillisecond) == 5);
  CHECK(leases_at(way, 5 * kMillisecond) == 2);
}

}  // namespace
}  // namespace penstock
