// From a job, a cluster and a profile to the fleet that is simulated, with what is supposed to happen to it.
//
//   const FleetSpec spec = fleet_of({job, "train", cluster, profile}, {parse_what_if("kill:3@5")});
//
// Machines stand in the order of their kinds' names, those that train first; ranks in the order of machines. So loader 3
//   is the fourth loader of that order, as `penstock launch` counts them.
// Thread-safety: pure functions. Failure: Error(config) for a cluster on which the job cannot run, or a job that has no
//   such split; Error(usage) for a what-if that is none.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/job/cluster.h"
#include "runtime/job/job.h"
#include "runtime/simulate/fleet/fleet_spec.h"
#include "runtime/simulate/plan/profile.h"

namespace penstock {

struct PlanInput {
  Job job;
  std::string split;
  Cluster cluster;
  Profile profile;
  // The encoded size of each sample of the data set, where its index is at hand. Otherwise `samples` says how many
  // there are; 0: as many as where the profile comes from.
  std::shared_ptr<const std::vector<int64_t>> sizes = {};
  int64_t samples = 0;
  int64_t epochs = 1;
  int64_t steps = 0;  // of each epoch, at most; 0: all
  // Steps of the first epoch that count for nothing; -1: none where a job is simulated, a tenth where a fleet is
  // planned.
  int64_t warmup_steps = -1;
  bool barrier = true;
};

// Keys whose values stand for measurements and are none: a profile does not have them.
std::vector<std::string> entered_by_hand(const PlanInput& input);

// What happens to loaders:
//   slow:2x0.4        loader 2 has 0.4 of its speed, from the beginning;  slow:2@10+5x0.4  from second 10 on, for 5
//   stop:2@10+5       it is stopped (SIGSTOP) at second 10, for 5
//   kill:2@10         it is killed at second 10;  kill:2@10+30  and is back after 30
//   node:1@10         machine 1 is lost: its loaders die, and nobody says so but their silence
//   nic:1x0.5         machine 1's NIC has half of its speed
//   tail:x3           one sample in 100 takes three times as long
struct WhatIf {
  enum class Kind : uint8_t { slow, stop, kill, node, nic, tail };
  Kind kind = Kind::slow;
  int which = 0;
  double at_s = 0;
  double lasts_s = 0;  // 0: for good
  double factor = 1;
  std::string text;  // as it was written
};
WhatIf parse_what_if(const std::string& text);

FleetSpec fleet_of(const PlanInput& input, const std::vector<WhatIf>& what_ifs = {});

// Loader ranks on one machine of this kind, by its cores.
int loaders_on(const ClusterNode& node, int threads);

}  // namespace penstock
