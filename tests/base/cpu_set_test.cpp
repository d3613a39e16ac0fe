#include "runtime/base/cpu_set.h"

#include <doctest/doctest.h>

using namespace penstock;

TEST_CASE("a set has the CPUs it was made of, whatever their numbers") {
  const CpuSet set({3, 0, 1500});
  CHECK(set.count() == 3);
  CHECK(set.has(1500));
  CHECK(set.has(3));
  CHECK_FALSE(set.has(1));
  CHECK_FALSE(set.has(9000));
  CHECK(set.bytes() >= 1501 / 8);
  CHECK(CpuSet(std::vector<int>{}).count() == 0);
}

TEST_CASE("what this thread may run on is found where the first attempt had no room for it") {
  const CpuSet found = CpuSet::allowed();
  REQUIRE(found.count() > 0);
  const CpuSet grown = CpuSet::allowed(0);  // the kernel refuses no room at all
  CHECK(grown.count() == found.count());
  REQUIRE(::sched_setaffinity(0, grown.bytes(), grown.get()) == 0);
  int some = 0;
  while (!found.has(some)) ++some;
  const CpuSet one({some});
  REQUIRE(::sched_setaffinity(0, one.bytes(), one.get()) == 0);
  CHECK(CpuSet::allowed().count() == 1);
  CHECK(CpuSet::allowed().has(some));
  REQUIRE(::sched_setaffinity(0, found.bytes(), found.get()) == 0);
}
