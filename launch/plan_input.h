// What the planner's commands are given: a job, a cluster, a profile, and overrides for both files.
//
//   PlanArguments arguments;
//   add_plan_arguments(*command, arguments, /*what_ifs=*/true);
//   const PlanInput input = plan_input(arguments);      // Error(config), Error(runtime) for the profile
#pragma once

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <vector>

#include "runtime/simulate/plan/fleet_of.h"
#include "runtime/simulate/plan/prediction.h"

namespace penstock {

struct PlanArguments {
  std::string job;
  std::string cluster;
  std::vector<std::string> overrides;
  std::string profile;
  std::string split;
  int64_t samples = 0;
  int64_t epochs = 1;
  int64_t steps = 0;
  int64_t warmup_steps = -1;
  int64_t seeds = 10;
  bool no_barrier = false;
  std::string balancer_log;  // of the first seed
  FleetPolicy policy = FleetPolicy::production;
  bool json = false;
  bool quiet = false;
  std::vector<std::string> what_ifs;
};

// `what_ifs`: of one fleet; a plan looks at many.
void add_plan_arguments(CLI::App& command, PlanArguments& arguments, bool what_ifs);
PlanInput plan_input(const PlanArguments& arguments, const std::vector<std::string>& more_overrides = {});
// A line that names them (fleet_of.h), where there are any.
void print_entered_by_hand(std::FILE* out, const std::vector<std::string>& keys);
std::vector<WhatIf> what_ifs_of(const PlanArguments& arguments);

}  // namespace penstock
