// How large a fleet a job needs: the smallest, the cheapest, and one that may lose a machine.
//
//   const FleetPlan plan = find_plan(input, {.images_per_s = 12000});
//   plan.sentence;   plan.cheapest->price_per_hour;   plan.looked_at;   // all that was simulated, for plots
//
// What may vary: the number of loader ranks on the machines that train (as far as their cores have room), and the
//   number of machines of each kind that only loads (up to its count). Three families are searched, each along one
//   number by bisection, because more loaders are never slower by more than noise: loaders beside the trainers;
//   machines of one kind instead; and both, where neither is enough. Machines of two kinds are not combined. The
//   machines that train are given, so only what is added costs. A target that is far beyond what a part of the cluster
//   does alone (bounds.h), or beyond the programs, is not searched for: one fleet is simulated, the one that comes closest.
// A job that runs for hours is meant: 150 steps are simulated, where the input says no number, of which the first tenth
//   counts for nothing, as there everybody waits for the first batches.
// Target: images a second of all trainers; or, where none is given, what the programs do when data is always there, less
//   a share.
// Thread-safety: uses threads of its own. Failure: Error(config) as fleet_of(). A target that no fleet of this cluster
//   reaches is not an error: FleetPlan::reachable, and why.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/simulate/plan/fleet_of.h"
#include "runtime/simulate/plan/prediction.h"

namespace penstock {

struct PlanTarget {
  double images_per_s = 0;  // 0: by `lost` alone
  double lost = 0.02;       // share of the programs' pace that may be lost to loading
};

// One fleet: what is added to the machines that train.
struct FleetChoice {
  int beside = 0;    // loader ranks on each machine that trains
  std::string kind;  // of machines that only load; empty: none
  int machines = 0;  // of that kind
  int loaders = 0;   // in all
  int threads = 0;
  double price_per_hour = 0;  // of what is added
  Prediction prediction;
  double lost = 0;  // share of what the programs would do if data were always there
  bool reaches = false;

  std::string name() const;  // "4 loaders beside the trainers of each machine and 3 machines of kind cpu"
};

struct FleetPlan {
  PlanTarget target;
  double wanted_images_per_s = 0;
  bool reachable = false;
  std::string why_not;                  // the bound, and because of what
  std::string remedy;                   // where it is out of reach
  std::optional<FleetChoice> smallest;  // fewest threads
  std::optional<FleetChoice> cheapest;
  std::optional<FleetChoice> safe;     // reaches it with one machine (or, beside trainers, one loader) fewer
  std::optional<FleetChoice> largest;  // the fastest that was looked at, where it is out of reach
  std::vector<FleetChoice> looked_at;
  std::string sentence;
};

struct PlanOptions {
  int64_t seeds = 10;  // of those that are chosen
  int64_t screening_seeds = 3;
  int curve_points = 0;  // of each family, besides those that the search needs; for plots
  int threads = 0;
  std::function<void(const std::string& what)> progress;
};

// The input with as many steps as a plan simulates, where it says no number.
PlanInput with_steps(PlanInput input);
// The input with a choice's loaders in place of the cluster's.
PlanInput with_choice(const PlanInput& input, const FleetChoice& choice);

FleetPlan find_plan(const PlanInput& input, const PlanTarget& target, const PlanOptions& options = {});

}  // namespace penstock
