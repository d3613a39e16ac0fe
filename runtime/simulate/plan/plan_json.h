// Plans as JSON, for `penstock plan --json` and for Python; and a target as people write it.
//
//   const PlanTarget target = parse_target("12000img/s");   // or "1%": the share of the programs' time that may be lost
//   nlohmann::json json = to_json(find_plan(input, target));
//
// Pure. Failure: Error(usage) for a target that is none.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "runtime/simulate/plan/plan.h"

namespace penstock {

PlanTarget parse_target(const std::string& text);  // empty: the default
nlohmann::json to_json(const FleetChoice& choice);
nlohmann::json to_json(const FleetPlan& plan);

}  // namespace penstock
