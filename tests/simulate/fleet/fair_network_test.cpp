// Links that are shared fairly: by hand, and against the definition on random networks. tests/simulate/simgrid_test.cpp
// compares with SimGrid.
#include "runtime/simulate/fleet/fair_network.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/simulate/seeded_random.h"

namespace penstock {
namespace {

using Over = std::vector<int>;

// What ends when, if nothing more begins.
std::map<uint64_t, Nanoseconds> run(FairNetwork& network) {
  std::map<uint64_t, Nanoseconds> ends;
  while (const auto next = network.next_finish()) ends[network.finish(*next)] = *next;
  return ends;
}

TEST_CASE("a flow alone has its narrowest link, and two share theirs") {
  FairNetwork network;
  const int out = network.add_link(1e9), in = network.add_link(5e8), other = network.add_link(1e9);
  network.begin(0, 1, 1000, Over{out, in});
  CHECK(network.rate_of(1) == doctest::Approx(5e8));
  network.begin(0, 2, 1000, Over{out, other});
  CHECK(network.rate_of(1) == doctest::Approx(5e8));
  CHECK(network.rate_of(2) == doctest::Approx(5e8));
  network.begin(0, 3, 500, Over{out, other});
  CHECK(network.rate_of(3) == doctest::Approx(1e9 / 3));
  // 3 ends after 1,500 ns, when 1 and 2 have 500 bytes left and half of the link each.
  CHECK(run(network) == std::map<uint64_t, Nanoseconds>{{1, 2500}, {2, 2500}, {3, 1500}});
  CHECK(network.carried_bytes(out) == 2500);
}

TEST_CASE("what one flow cannot use, because it is narrower elsewhere, the others have") {
  FairNetwork network;
  const int wide = network.add_link(1e9), narrow = network.add_link(1e8);
  network.begin(0, 1, 1'000'000, Over{wide, narrow});
  network.begin(0, 2, 1'000'000, Over{wide});
  CHECK(network.rate_of(1) == doctest::Approx(1e8));
  CHECK(network.rate_of(2) == doctest::Approx(9e8));
}

TEST_CASE("flows over no link, and of nothing, are through at once") {
  FairNetwork network;
  const int link = network.add_link(1);
  network.begin(5, 1, 1000, Over{});
  network.begin(5, 2, 0, Over{link});
  CHECK(run(network) == std::map<uint64_t, Nanoseconds>{{1, 5}, {2, 5}});
}

TEST_CASE("links without capacity, and unknown ones, are refused") {
  FairNetwork network;
  CHECK_THROWS_AS(network.add_link(0), Error);
  CHECK_THROWS_AS(network.begin(0, 1, 1, Over{3}), Error);
}

// Max-min: every flow has a link that is full, and no flow over that link has more than it.
TEST_CASE("on random networks no flow can get more without taking it from one that has no more") {
  const uint64_t seed = 4;
  MESSAGE("seed " << seed);
  SeededRandom random(seed);
  for (int round = 0; round < 200; ++round) {
    FairNetwork network;
    std::vector<double> capacity;
    for (int64_t i = random.between(1, 8); i > 0; --i) {
      capacity.push_back(static_cast<double>(random.between(1, 100)) * 1e7);
      network.add_link(capacity.back());
    }
    std::map<uint64_t, Over> flows;
    std::map<uint64_t, int64_t> bytes;
    std::map<uint64_t, Nanoseconds> ends;
    Nanoseconds now = 0;
    uint64_t next_id = 1;
    const auto look = [&] {
      std::vector<double> used(capacity.size(), 0);
      for (const auto& [id, over] : flows) {
        for (const int link : over) used[static_cast<size_t>(link)] += network.rate_of(id);
      }
      for (size_t link = 0; link < capacity.size(); ++link) REQUIRE(used[link] <= capacity[link] * (1 + 1e-9));
      for (const auto& [id, over] : flows) {
        const double mine = network.rate_of(id);
        const bool bound = std::any_of(over.begin(), over.end(), [&](int link) {
          if (used[static_cast<size_t>(link)] < capacity[static_cast<size_t>(link)] * (1 - 1e-9)) return false;
          return std::all_of(flows.begin(), flows.end(), [&](const auto& other) {
            const bool there = std::find(other.second.begin(), other.second.end(), link) != other.second.end();
            return !there || network.rate_of(other.first) <= mine * (1 + 1e-9);
          });
        });
        REQUIRE(bound);
      }
    };
    for (int step = 0; step < 40; ++step) {
      const auto due = network.next_finish();
      if (random.chance(60) || !due) {
        now = std::min(now + random.below(100'000), due.value_or(now + 100'000));
        Over over;
        for (int link = 0; link < static_cast<int>(capacity.size()); ++link) {
          if (over.size() < 4 && random.chance(50)) over.push_back(link);
        }
        if (over.empty()) over.push_back(0);
        const uint64_t id = next_id++;
        bytes[id] = random.between(1, 1'000'000);
        network.begin(now, id, bytes[id], over);
        flows[id] = over;
      } else {
        now = *due;
        flows.erase(network.finish(now));
      }
      look();
    }
    CHECK(network.flows() == flows.size());
  }
}

}  // namespace
}  // namespace penstock
