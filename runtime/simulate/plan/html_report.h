// A plan as one page that opens without a network: the answer, the fleets, and pictures of how it comes about.
//
//   write(path, plan_page(plan, input, "penstock plan job.yaml cluster.yaml --profile p.json"));
//
// Pictures: throughput over loaders with its band and knee; price against what is lost, those that nothing beats joined;
//   loaders against batch size; the distribution of waits; who did what around the longest wait of a step; what was
//   predicted against what was measured of the points that this simulation was validated by.
// Some more fleets are simulated for them. Thread-safety: uses threads of its own. Failure: as find_plan().
#pragma once

#include <string>

#include "runtime/simulate/plan/plan.h"

namespace penstock {

std::string plan_page(const FleetPlan& plan, const PlanInput& input, const std::string& command);

// How near this fleet is to those that predictions were validated by, and what of it is extrapolation; a sentence.
std::string trust_line(const FleetChoice& choice, const PlanInput& input);

}  // namespace penstock
