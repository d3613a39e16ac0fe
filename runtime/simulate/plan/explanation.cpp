#include "runtime/simulate/plan/explanation.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace penstock {
namespace {

constexpr double kMore = 1.1;

struct Part {
  const char* what;
  std::function<bool(const FleetSpec&)> is_there;
  std::function<void(FleetSpec&)> improve;
};

void hurry(Nanoseconds& time) {
  time = static_cast<Nanoseconds>(static_cast<double>(time) / kMore);
}

const std::vector<Part>& parts() {
  static const std::vector<Part> all = {
      {"the loaders' threads", [](const FleetSpec&) { return true; },
       [](FleetSpec& spec) {
         for (FleetLoader& loader : spec.loaders) loader.speed = loader.speed.times(kMore);
       }},
      {"the training program", [](const FleetSpec&) { return true; },
       [](FleetSpec& spec) {
         for (FleetTrainer& trainer : spec.trainers) trainer.step_ns = trainer.step_ns.times(1 / kMore);
       }},
      {"the machines' NICs",
       [](const FleetSpec& spec) {
         return std::any_of(spec.nodes.begin(), spec.nodes.end(),
                            [](const FleetNode& node) { return node.bytes_per_s > 0; });
       },
       [](FleetSpec& spec) {
         for (FleetNode& node : spec.nodes) node.bytes_per_s *= kMore;
       }},
      {"the racks' uplinks", [](const FleetSpec& spec) { return !spec.racks.empty(); },
       [](FleetSpec& spec) {
         for (FleetRack& rack : spec.racks) rack.bytes_per_s *= kMore;
       }},
      {"the network's latency", [](const FleetSpec& spec) { return spec.nodes.size() > 1; },
       [](FleetSpec& spec) {
         for (FleetNode& node : spec.nodes) hurry(node.latency_ns);
       }},
      {"the storage",
       [](const FleetSpec& spec) { return spec.storage.bytes_per_s > 0 || spec.storage.reads_per_s > 0; },
       [](FleetSpec& spec) {
         spec.storage.bytes_per_s *= kMore;
         spec.storage.reads_per_s *= kMore;
         spec.storage.latency_ns = spec.storage.latency_ns.times(1 / kMore);
       }},
      {"the receivers", [](const FleetSpec& spec) { return spec.overhead.receiver_ns_per_byte > 0; },
       [](FleetSpec& spec) {
         spec.overhead.receiver_ns_per_byte /= kMore;
         hurry(spec.overhead.receiver_chunk_ns);
       }},
      {"the coordinator", [](const FleetSpec& spec) { return spec.overhead.event_ns > 0; },
       [](FleetSpec& spec) {
         hurry(spec.overhead.event_ns);
         hurry(spec.overhead.grant_ns);
       }},
  };
  return all;
}

}  // namespace

Explanation explain(const FleetSpec& spec, const PredictOptions& options) {
  Explanation out;
  out.as_it_is = predict(spec, options);
  const auto add = [&](const std::string& what, const FleetSpec& changed) {
    const Prediction with = predict(changed, options);
    std::vector<double> gains;
    for (size_t i = 0; i < with.rates.size(); ++i) {
      const double before = out.as_it_is.rates[i];
      gains.push_back(before > 0 ? with.rates[i] / before - 1 : 0);
    }
    const Estimate gain = estimate(gains);
    out.gains.push_back({what, with.images_per_s.mean, gain.mean, gain.half_width, with.stalled.mean});
  };
  for (const Part& part : parts()) {
    if (!part.is_there(spec)) continue;
    FleetSpec changed = spec;
    part.improve(changed);
    add(std::string(part.what) + ", a tenth faster", changed);
  }
  FleetSpec deeper = spec;
  ++deeper.prefetch;
  add("one batch more ahead (loader.prefetch)", deeper);
  std::stable_sort(out.gains.begin(), out.gains.end(), [](const Gain& a, const Gain& b) { return a.gain > b.gain; });
  return out;
}

}  // namespace penstock
