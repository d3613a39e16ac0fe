#include "runtime/coordinator/balance_report.h"

#include <nlohmann/json.hpp>

namespace penstock {

nlohmann::json balance_report(const Balancer& balancer, const std::vector<int>& nodes) {
  using nlohmann::json;
  json report = {{"costs", json::array()}, {"loaders", json::array()}, {"links", json::array()}, {"nodes", nodes}};
  for (const int32_t executor_class : {0, 1}) {
    const Balancer::CostFigures cost = balancer.cost(executor_class);
    if (cost.samples == 0) continue;
    report["costs"].push_back({{"executors", executor_class == 0 ? "cpu" : "gpu"},
                               {"chunks", cost.samples},
                               {"mean_us", cost.mean_ns / 1e3},
                               {"fixed_us", cost.fixed_ns / 1e3},
                               {"ns_per_byte", cost.ns_per_byte},
                               {"ns_per_pixel", cost.ns_per_pixel}});
  }
  for (const auto& [rank, f] : balancer.figures()) {
    report["loaders"].push_back({{"rank", rank},
                                 {"chunks", f.chunks},
                                 {"speed", f.speed},
                                 {"slow", f.slow},
                                 {"regranted", f.regranted},
                                 {"hedged", f.hedged}});
  }
  for (const Balancer::LinkFigures& f : balancer.links()) {
    report["links"].push_back({{"from", f.from},
                               {"to", f.to},
                               {"chunks", f.chunks},
                               {"bytes", f.bytes},
                               {"mb_per_s", f.bytes_per_s > 0 ? json(f.bytes_per_s / 1e6) : json()},
                               {"latency_ms", f.latency_ns / 1e6},
                               {"peak_mb_per_s", f.peak_bytes_per_s > 0 ? json(f.peak_bytes_per_s / 1e6) : json()}});
  }
  return report;
}

}  // namespace penstock
