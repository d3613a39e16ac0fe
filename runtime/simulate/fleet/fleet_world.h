// A job on a fleet in virtual time: how fast it goes, who waits for whom, and what faults cost.
//
//   const FleetResult result = simulate_fleet(spec, {.seed = 1});
//   result.images_per_s;  result.stalled;  result.waits.quantile(0.99);
//
// The production balancer and sampler make every decision; loaders, links, disks and programs are models
//   (loader_model.h, fleet_links.h, trainer_model.h). One thread; integers for time; so a seed gives one log.
// What it checks of itself, in every run: Little's law of leases, chunks and batches (little_law.h); that each chunk of each
//   batch is taken once, in order of steps; that somebody works while somebody waits.
// Thread-safety: none needed; runs in different threads share nothing. Failure: a job that cannot go on (all loaders
//   lost) is FleetResult::failure; Error(usage) for a spec that describes nothing; Error(runtime) for a defect of ours.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/histogram.h"
#include "runtime/simulate/fleet/fleet_spec.h"

namespace penstock {

// What somebody did for a while, for a picture of a step.
struct FleetSpan {
  enum class What : uint8_t { make, travel, wait, step };  // a loader's, a chunk's, a program's
  What what = What::make;
  int32_t who = 0;  // loader, or trainer
  Nanoseconds begin = 0;
  Nanoseconds end = 0;
  int64_t step = 0;
  int32_t chunk = 0;
  int32_t trainer = 0;  // that it is for
};

struct FleetOptions {
  uint64_t seed = 1;
  std::vector<FleetSpan>* spans = nullptr;     // wanted; a large job has many
  std::string* balancer_log = nullptr;         // as balancer.log of a job: `penstock replay` takes it
  std::string* text = nullptr;                 // everything that happens, a line each
  Nanoseconds stuck_after_ns = 600 * kSecond;  // without a batch, while programs wait for one
};

struct FleetResult {
  std::string failure;  // empty: all batches were delivered
  uint64_t log = 0;     // hash of everything that happened
  Nanoseconds first_batch_ns = 0;
  Nanoseconds took_ns = 0;  // from the first next() until the last step was done
  int64_t images = 0;
  int64_t batches = 0;
  // As in a job's report: of each trainer from its first next() to its last batch, added.
  double images_per_s = 0;
  double stalled = 0;     // share of the time for which programs wait for batches
  double at_barrier = 0;  // and for each other, after a step
  Histogram waits;        // of each next()
  // When each step of each epoch was done by all trainers, where there is a barrier.
  std::vector<Nanoseconds> steps_done_ns;

  struct Loader {
    int64_t chunks = 0;
    double busy = 0;  // share of its threads' time
  };
  std::vector<Loader> loaders;
  double busiest_link = 0;  // share of its capacity
  int64_t bytes_between_nodes = 0;

  int64_t grants = 0;
  int64_t regranted = 0;
  int64_t hedged = 0;
  int64_t decisions = 0;  // of the balancer: events that it was told
  int64_t events = 0;     // of the loop
};

FleetResult simulate_fleet(const FleetSpec& spec, const FleetOptions& options = {});

}  // namespace penstock
