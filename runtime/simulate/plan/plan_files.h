// What a plan is made of, from files: a job, a cluster, a profile, and overrides for both of the first two.
//
//   const PlanInput input = read_plan_files({.job = "job.yaml", .cluster = "cluster.yaml", .profile = "profile.json",
//                                            .overrides = {"loader.threads=8", "nodes.cpu.count=4"}});
//
// Where the split's data set has an index and that is here, it says how large each sample is; the data need not be here.
// An override belongs to the cluster where its first key does (nodes, network, storage, program, faults, currency), and
//   to the job otherwise.
// Failure: Error(config) for job and cluster, Error(runtime) for the profile, Error(dataset) for an index that is none.
#pragma once

#include <string>
#include <vector>

#include "runtime/simulate/plan/fleet_of.h"

namespace penstock {

struct PlanFiles {
  std::string job;
  std::string cluster;
  std::string profile;
  std::vector<std::string> overrides = {};
  std::string split = {};  // empty: the job's first one that trains
};

PlanInput read_plan_files(const PlanFiles& files);

bool of_cluster(const std::string& override_text);
// A hash of a split's transforms: a profile that was measured with other transforms says nothing about this split.
std::string pipeline_hash(const Job& job, const std::string& split);
// What is amiss with a profile that is not quite this job's; empty: nothing.
std::string profile_doubt(const PlanInput& input);
// The split that a job is planned by, where none is named.
std::string main_split(const Job& job);

}  // namespace penstock
