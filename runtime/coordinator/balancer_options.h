// What a job file says about the balancer, as the balancer takes it: the coordinator's, and the planner's of jobs that do
// not run yet. Pure.
#pragma once

#include <cstdint>

#include "runtime/balancer/balancer.h"
#include "runtime/job/job.h"

namespace penstock {

inline BalancerOptions balancer_options(const BalancerSpec& spec) {
  BalancerOptions options;
  options.policy =
      spec.policy == GrantPolicy::random ? BalancerOptions::Policy::random : BalancerOptions::Policy::deadline;
  options.lease_timeout_ns = static_cast<int64_t>(spec.lease_timeout_s * 1e9);
  options.lost_after_ns = static_cast<int64_t>(spec.lost_after_s * 1e9);
  if (spec.on_all_lost == AllLostPolicy::wait) options.all_lost_ns = static_cast<int64_t>(spec.wait_s * 1e9);
  options.remake_every = spec.remake_every;
  options.retry_for_ns = static_cast<int64_t>(spec.retry_s * 1e9);
  return options;
}

}  // namespace penstock
