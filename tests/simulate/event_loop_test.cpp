#include "runtime/simulate/event_loop.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

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

TEST_CASE("a thousand worlds of random times happen in order") {
  for (uint64_t seed = 1; seed <= 1000; ++seed) {
    CAPTURE(seed);
    SeededRandom random(seed);
    EventLoop loop;
    std::vector<std::pair<Nanoseconds, int>> expected, happened;
    int added = 0;
    const std::function<void(int)> add = [&](int depth) {
      const Nanoseconds when = loop.now() + random.below(20);
      const int number = added++;
      expected.emplace_back(when, number);
      loop.at(when, [&, when, number, depth] {
        happened.emplace_back(when, number);
        for (int i = 0; depth > 0 && i < 2; ++i) add(depth - 1);
      });
    };
    for (int i = 0; i < 20; ++i) add(2);
    while (loop.step()) {
    }
    std::sort(expected.begin(), expected.end());
    REQUIRE(happened == expected);
  }
}

TEST_CASE("an event may be large, may throw, and what has not happened is given up with the loop") {
  const auto owned = std::make_shared<int>(1);
  {
    EventLoop loop;
    std::array<int64_t, 40> large{};
    large[39] = 7;
    int64_t sum = 0;
    loop.after(1, [&sum, large, owned] { sum += large[39]; });
    loop.after(2, [owned] { throw std::runtime_error("broken"); });
    loop.after(3, [&sum, owned] { ++sum; });
    loop.after(4, [owned] {});
    CHECK(owned.use_count() == 5);
    CHECK(loop.step());
    CHECK(owned.use_count() == 4);
    CHECK_THROWS_WITH_AS(loop.step(), "broken", std::runtime_error);
    CHECK(owned.use_count() == 3);
    CHECK(loop.step());
    CHECK(sum == 8);
    CHECK(loop.pending() == 1);
  }
  CHECK(owned.use_count() == 1);
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
