// Whole jobs in virtual time under faults: see tests/simulate/faults/fault_world.h for what is drawn and what is checked.
//
//   fault_world_test                                  # the seeds below
//   PENSTOCK_FULL=1 fault_world_test                  # many more
//   PENSTOCK_WORLDS=2000 fault_world_test             # as many as that in the first case
//   PENSTOCK_SEED=123 fault_world_test                # this world alone, with everything that happens in it
#include "tests/simulate/faults/fault_world.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "tests/support/sanitized.h"

namespace penstock {
namespace {

struct Sums {
  int64_t worlds = 0, batches = 0, losses = 0, returns = 0, granted = 0, regranted = 0, hedged = 0, left = 0,
          compared = 0;

  void add(const WorldResult& world) {
    ++worlds;
    batches += world.batches;
    losses += world.losses;
    returns += world.returns;
    granted += world.granted;
    regranted += world.regranted;
    hedged += world.hedged;
    left += world.left;
    compared += world.compared;
  }
};

int64_t number_of(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoll(text);
}

// One seed in 16, with PENSTOCK_FULL=1 or chosen alone each, has its world run twice: the same seed, the same log.
bool run_twice(int64_t seed) {
  return number_of("PENSTOCK_FULL", 0) + number_of("PENSTOCK_SEED", 0) + number_of("PENSTOCK_LOCAL_SEED", 0) > 0 ||
         seed % 16 == 0;
}

// The seed's world without faults; several cases compare with the same ones.
const WorldResult& undisturbed(uint64_t seed) {
  static std::map<uint64_t, WorldResult> known;
  const auto found = known.find(seed);
  return found != known.end()
             ? found->second
             : known.emplace(seed, FaultWorld(seed, {.faults = false, .logged = false}).run()).first->second;
}

TEST_CASE("the stream goes on, exactly once, whatever befalls loaders, as long as one is healthy") {
  const int64_t seed_alone = number_of("PENSTOCK_SEED", 0);
  const int64_t first = seed_alone > 0 ? seed_alone : 1;
  const int64_t usual = number_of("PENSTOCK_FULL", 0) > 0 ? 20'000 : 1'000 / kSanitizedFactor;
  const int64_t worlds = seed_alone > 0 ? 1 : number_of("PENSTOCK_WORLDS", usual);
  MESSAGE("seeds " << first << " to " << first + worlds - 1);
  Sums sums;
  for (int64_t seed = first; seed < first + worlds; ++seed) {
    CAPTURE(seed);
    const auto number = static_cast<uint64_t>(seed);
    std::string text;
    const WorldResult& quiet = undisturbed(number);
    const WorldResult world =
        FaultWorld(number, {.logged = run_twice(seed), .text = seed_alone > 0 ? &text : nullptr}).run();
    if (!text.empty()) std::fputs(text.c_str(), stdout);
    REQUIRE(quiet.failure == "");
    CHECK(quiet.losses == 0);
    REQUIRE(world.failure == "");
    CHECK(world.hashes == quiet.hashes);
    CHECK(world.batches == quiet.batches);
    if (run_twice(seed)) CHECK(FaultWorld(number).run().log == world.log);
    sums.add(world);
  }
  MESSAGE("worlds " << sums.worlds << ", batches " << sums.batches << ", losses " << sums.losses << ", returns "
                    << sums.returns << ", granted " << sums.granted << ", regranted " << sums.regranted << ", hedged "
                    << sums.hedged << ", left " << sums.left << ", made twice and compared " << sums.compared);
  if (seed_alone > 0) return;
  CHECK(sums.losses > sums.worlds / 2);
  CHECK(sums.returns > sums.worlds / 20);
  CHECK(sums.hedged > 0);
  CHECK(sums.left > sums.worlds / 20);
  CHECK(sums.compared > sums.worlds);
}

TEST_CASE("the stream is the same where loaders can read some of the samples only") {
  const int64_t seed_alone = number_of("PENSTOCK_LOCAL_SEED", 0);
  const int64_t first = seed_alone > 0 ? seed_alone : 1;
  const int64_t worlds = seed_alone > 0 ? 1 : number_of("PENSTOCK_FULL", 0) > 0 ? 10'000 : 125;
  MESSAGE("seeds " << first << " to " << first + worlds - 1);
  Sums sums;
  for (int64_t seed = first; seed < first + worlds; ++seed) {
    CAPTURE(seed);
    const auto number = static_cast<uint64_t>(seed);
    std::string text;
    const WorldResult& quiet = undisturbed(number);
    const WorldResult local = FaultWorld(number, {.faults = false, .local = true, .logged = false}).run();
    const WorldResult world =
        FaultWorld(number, {.local = true, .logged = run_twice(seed), .text = seed_alone > 0 ? &text : nullptr}).run();
    if (!text.empty()) std::fputs(text.c_str(), stdout);
    REQUIRE(local.failure == "");
    CHECK(local.losses == 0);
    CHECK(local.hashes == quiet.hashes);
    REQUIRE(world.failure == "");
    CHECK(world.hashes == quiet.hashes);
    CHECK(world.batches == quiet.batches);
    if (run_twice(seed)) CHECK(FaultWorld(number, {.local = true}).run().log == world.log);
    sums.add(world);
  }
  MESSAGE("worlds " << sums.worlds << ", batches " << sums.batches << ", losses " << sums.losses << ", returns "
                    << sums.returns << ", granted " << sums.granted << ", regranted " << sums.regranted << ", hedged "
                    << sums.hedged << ", left " << sums.left << ", made twice and compared " << sums.compared);
  if (seed_alone > 0) return;
  CHECK(sums.losses > sums.worlds * 2 / 5);
  CHECK(sums.returns > sums.worlds / 20);
  CHECK(sums.compared > sums.worlds / 2);
}

TEST_CASE("a loader that computes wrongly is found by chunks that are made twice, and named") {
  int64_t found = 0;
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    CAPTURE(seed);
    const WorldResult world = FaultWorld(seed, {.faults = false, .wrong = true, .logged = false}).run();
    REQUIRE(world.failure == "");
    found += world.differences > 0 ? 1 : 0;
  }
  MESSAGE("found in " << found << " of 100 worlds");
  CHECK(found > 80);
}

TEST_CASE("loaders that were given up come back, whatever is still on its way") {
  int64_t returns = 0;
  for (int64_t seed = 1; seed <= 600; ++seed) {
    CAPTURE(seed);
    const auto number = static_cast<uint64_t>(seed);
    const WorldResult& quiet = undisturbed(number);
    const WorldResult world = FaultWorld(number, {.returns = true, .logged = run_twice(seed)}).run();
    REQUIRE(world.failure == "");
    CHECK(world.hashes == quiet.hashes);
    if (run_twice(seed)) CHECK(FaultWorld(number, {.returns = true}).run().log == world.log);
    returns += world.returns;
  }
  MESSAGE(returns << " returns");
  CHECK(returns > 300);
}

TEST_CASE("where all loaders are lost and the job waits, it goes on with those that come back") {
  int64_t returns = 0, none_left = 0, openings = 0;
  for (int64_t seed = 1; seed <= 50; ++seed) {
    CAPTURE(seed);
    const auto number = static_cast<uint64_t>(seed);
    const FaultWorld::Options options{.waits = true, .local = seed > 30, .logged = run_twice(seed)};
    const WorldResult& quiet = undisturbed(number);
    const WorldResult world = FaultWorld(number, options).run();
    REQUIRE(world.failure == "");
    CHECK(world.hashes == quiet.hashes);
    CHECK(world.batches == quiet.batches);
    if (run_twice(seed)) CHECK(FaultWorld(number, options).run().log == world.log);
    returns += world.returns;
    none_left += world.none_was_left ? 1 : 0;
    openings += world.waiting_openings;
  }
  MESSAGE(none_left << " worlds without any loader, " << returns << " returns, " << openings
                    << " openings that waited for one");
  CHECK(none_left > 20);
  CHECK(returns > 20);
  CHECK(openings > 5);
}

TEST_CASE("a chunk that arrives damaged is asked for again at once") {
  int64_t batches = 0;
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    CAPTURE(seed);
    const WorldResult& quiet = undisturbed(seed);
    const WorldResult world = FaultWorld(seed, {.damaged_chunks = true, .logged = false}).run();
    REQUIRE(world.failure == "");
    CHECK(world.hashes == quiet.hashes);
    CHECK(world.losses == 0);
    // A chunk's time more; not the seconds that a lease may take.
    CHECK(world.longest_wait_ns < quiet.longest_wait_ns + 600 * kMillisecond);
    batches += world.batches;
  }
  CHECK(batches > 1000);
}

TEST_CASE("where many leases are late at once, hedges keep to their budget") {
  int64_t granted = 0, hedged = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    const WorldResult quiet = FaultWorld(seed, {.faults = false, .late = true, .logged = false}).run();
    const WorldResult world = FaultWorld(seed, {.late = true, .logged = false}).run();
    REQUIRE(quiet.failure == "");
    REQUIRE(world.failure == "");  // the world counts them
    CHECK(world.hashes == quiet.hashes);
    CHECK(world.losses == 0);
    granted += world.granted;
    hedged += world.hedged;
  }
  MESSAGE(hedged << " hedges of " << granted << " grants");
  CHECK(hedged > 100);
}

TEST_CASE("where all loaders are lost the job ends, by that name, within five seconds") {
  int64_t ended = 0;
  double longest_s = 0;
  for (uint64_t seed = 1; seed <= 150; ++seed) {
    CAPTURE(seed);
    const WorldResult world = FaultWorld(seed, {.all_lost = true, .local = seed > 100, .logged = false}).run();
    REQUIRE(world.failure == "");
    ended += world.losses > 0 ? 1 : 0;
    longest_s = std::max(longest_s, as_seconds(world.end_took_ns));
  }
  MESSAGE(ended << " ended, " << longest_s << " s after the last loader at most");
  CHECK(ended > 75);
  CHECK(longest_s > 2);
}

}  // namespace
}  // namespace penstock
