// What the balancer has learned, for the job's report.
//
//   report["balance"] = balance_report(balancer, nodes);
//
//   costs     per class of executors that made chunks: {executors: "cpu" | "gpu", chunks, mean_us, fixed_us,
//             ns_per_byte, ns_per_pixel}: what a chunk costs one executor, on average and by its encoded bytes and
//             decoded pixels. Of few chunks that are alike the three parts may be negative: only their sum is known
//   loaders   {rank, chunks, speed, slow, regranted, hedged}; speed: beside its class's mean
//   links     {from, to, chunks, bytes, mb_per_s, latency_ms, peak_mb_per_s}: nodes, of which `from` holds the loader;
//             mb_per_s is null where nothing ever waited for the link, the peak where fewer than 17 chunks arrived
//   nodes     the node of every rank
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "runtime/balancer/balancer.h"

namespace penstock {

nlohmann::json balance_report(const Balancer& balancer, const std::vector<int>& nodes);

}  // namespace penstock
