// A job, a cluster and a profile for tests of the planner: samples of 10 ms, steps of 200 ms.
#pragma once

#include <string>
#include <vector>

#include "runtime/simulate/plan/fleet_of.h"

namespace penstock {

inline constexpr const char* kPlanJob = R"(
seed: 1
loader: {threads: 4}
splits:
  train:
    dataset: {folder: /photos}
    pipeline: [{RandomResizedCrop: {size: 224}}]
    sampler: {shuffle: true}
    batch_size: 32
)";

inline constexpr const char* kPlanCluster = R"(
nodes:
  gpu: {count: 2, cores: 16, cores_for_training: 8, trainers: 4, network_gbit: 50, price_per_hour: 20}
  cpu: {count: 8, cores: 16, network_gbit: 25, price_per_hour: 1}
  big: {count: 2, cores: 64, network_gbit: 25, price_per_hour: 5}
program: {step_ms: 200}
)";

inline PlanInput small_plan(const std::vector<std::string>& cluster = {}, const std::vector<std::string>& job = {}) {
  PlanInput input;
  input.job = parse_job(kPlanJob, "job.yaml", job);
  input.cluster = parse_cluster(kPlanCluster, "cluster.yaml", cluster);
  input.split = "train";
  for (int i = 0; i < 1000; ++i) {
    input.profile.sample_ns.add(5 * kMillisecond + i * 10 * kMicrosecond);  // 10 ms in the mean
    input.profile.sample_bytes.add(100'000);
  }
  input.profile.dataset_size = 100'000;
  input.profile.payload_bytes = 150'528;
  input.steps = 40;
  return input;
}

}  // namespace penstock
