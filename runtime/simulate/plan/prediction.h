// What a job on a fleet is expected to do: some seeds of the simulation, all cores at work, and what they agree on.
//
//   const Prediction p = predict(spec, {.seeds = 10});
//   p.images_per_s.mean, p.images_per_s.half_width;     // of the 95 % interval, Student's t
//
// The same seeds for every fleet (common random numbers): two predictions differ by the fleets.
// Beside them the naive formula: the least of what loaders, links, disks and programs can do alone.
// Thread-safety: predict() uses threads of its own; they share nothing. Failure: as simulate_fleet(); a job that cannot go
//   on, with some seed, is Prediction::failure.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "runtime/base/histogram.h"
#include "runtime/simulate/fleet/fleet_world.h"
#include "runtime/simulate/plan/bounds.h"

namespace penstock {

struct Estimate {
  double mean = 0;
  double half_width = 0;  // of its 95 % interval; 0 with one seed
};
Estimate estimate(const std::vector<double>& values);

struct Prediction {
  std::string failure;        // of the first seed that failed, and which
  std::vector<double> rates;  // images a second, by seed
  Estimate images_per_s;
  Estimate stalled;     // share of the programs' time in which they wait for batches
  Estimate at_barrier;  // and for each other after a step: most often for one that waits for its batch
  Estimate step_s;      // mean time of a step, waiting and all
  Histogram waits;      // of each next(), all seeds
  double loaders_busy = 0;
  double busiest_link = 0;
  double first_batch_s = 0;
  Bounds naive;  // which part that formula blames, and what it says
  int64_t seeds = 0;
  std::string log;  // hash of all seeds' logs
};

struct PredictOptions {
  int64_t seeds = 10;
  uint64_t first_seed = 1;
  int threads = 0;                             // 0: as many as there are cores
  std::function<void(int64_t done)> progress;  // from any thread, one at a time
};

Prediction predict(const FleetSpec& spec, const PredictOptions& options = {});
nlohmann::json to_json(const Prediction& prediction);

}  // namespace penstock
