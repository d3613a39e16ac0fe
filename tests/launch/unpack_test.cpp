// Parts of `penstock unpack` that need no program: which names are files below a folder, and the line of progress.
#include "launch/unpack.h"

#include <doctest/doctest.h>

#include "launch/work_line.h"

using namespace penstock;

TEST_CASE("names that lead out of a folder") {
  for (const char* name : {"", "/a", "..", "../a", "a/../b", "a/..", "./a", "a//b", "a/", "."}) {
    CHECK_MESSAGE(!unsafe_name(name).empty(), name);
  }
  CHECK(!unsafe_name(std::string("a\0b", 3)).empty());
  CHECK(!unsafe_name(std::string(256, 'x')).empty());
  for (const char* name : {"a", "a/b.jpg", "...", "a/..b", ".hidden", "a b/c\n"}) CHECK(unsafe_name(name).empty());
}

TEST_CASE("the line of progress") {
  CHECK(work_line("pack", 1200, 5000, 200, 130'200'000, 10) ==
        "pack: 1200 of 5000 samples, 130.2 MB, 13.0 MB/s, ETA 0:38");
  CHECK(work_line("pack", 0, 10, 0, 0, 0) == "pack: 0 of 10 samples, 0.0 MB, 0.0 MB/s, ETA 0:00");
}
