// What a tenth more of each resource would bring: the simulation once as it is, and once for each part that is faster.
//
//   for (const Gain& gain : explain(spec, {.seeds = 10})) gain.what, gain.images_per_s, gain.gain, gain.half_width;
//
// The same seeds for all of them, so that what differs is the part (common random numbers); the interval is of the
//   differences, seed by seed. Sorted by what they bring.
// Thread-safety: uses threads of its own. Failure: as simulate_fleet().
#pragma once

#include <string>
#include <vector>

#include "runtime/simulate/plan/prediction.h"

namespace penstock {

struct Gain {
  std::string what;         // "the loaders' threads, a tenth faster"
  double images_per_s = 0;  // with it
  double gain = 0;          // share of the throughput as it is
  double half_width = 0;    // of its 95 % interval
  double stalled = 0;
};

struct Explanation {
  Prediction as_it_is;
  std::vector<Gain> gains;
};

Explanation explain(const FleetSpec& spec, const PredictOptions& options);

}  // namespace penstock
