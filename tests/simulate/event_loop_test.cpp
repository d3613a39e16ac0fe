#include "runtime/simulate/event_loop.h"

#include <doctest/doctest.h>

#include <string>

#include "runtime/simulate/seeded_random.h"

namespace penstock {
namespace {

TEST_CASE("events happen in the order of their time, equal times in the order in which they were added") {
  EventLoop loop;
  std::string order;
  loop.after(20, [&] { order += 'c'; });
  loop.after(10, [&] {
    order += 'a';
    loop.after(10, [&] { order += 'd'; });
    loop.at(0, [&] { order += 'b'; });  // over: now
  });
  while (loop.step()) {
  }
  CHECK(order == "abcd");
  CHECK(loop.now() == 20);
  CHECK(loop.clock().now() == 20);
}

TEST_CASE("a seed's numbers are these, on every machine") {
  SeededRandom random(42);
  CHECK(random.below(1000) == 955);
  int64_t sum = 0;
  for (int i = 0; i < 10'000; ++i) sum += random.between(-5, 5);
  CHECK(std::abs(sum) < 1000);
}

}  // namespace
}  // namespace penstock
