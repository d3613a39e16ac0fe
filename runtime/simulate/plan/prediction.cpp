#include "runtime/simulate/plan/prediction.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "runtime/base/hash.h"
#include "runtime/base/several_threads.h"
#include "runtime/base/thread_annotations.h"

namespace penstock {
namespace {

// Student's t for a 95 % interval, by degrees of freedom; from 30 on the normal distribution's is within 4 %.
double student_t(size_t freedom) {
  constexpr double table[] = {0,     12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
                              2.201, 2.179,  2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080,
                              2.074, 2.069,  2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042};
  return freedom < std::size(table) ? table[freedom] : 1.96;
}

}  // namespace

Estimate estimate(const std::vector<double>& values) {
  if (values.empty()) return {};
  const auto n = static_cast<double>(values.size());
  double mean = 0, squares = 0;
  for (const double value : values) mean += value / n;
  for (const double value : values) squares += (value - mean) * (value - mean);
  if (values.size() < 2) return {mean, 0};
  return {mean, student_t(values.size() - 1) * std::sqrt(squares / (n - 1) / n)};
}

Prediction predict(const FleetSpec& spec, const PredictOptions& options) {
  spec.check();
  const auto seeds = static_cast<size_t>(std::max<int64_t>(1, options.seeds));
  std::vector<FleetResult> results(seeds);
  Mutex progress_mutex;
  int64_t done = 0;
  const size_t threads = options.threads > 0 ? static_cast<size_t>(options.threads) : number_of_cores();
  for_each_on_threads(seeds, threads, [&] {
    return [&](size_t i) {
      results[i] = simulate_fleet(spec, {.seed = options.first_seed + i});
      MutexLock lock(progress_mutex);
      ++done;
      if (options.progress) options.progress(done);
    };
  });

  Prediction sum;
  sum.seeds = static_cast<int64_t>(seeds);
  std::vector<double> stalls, barriers, steps;
  std::string logs;
  for (size_t i = 0; i < seeds; ++i) {
    const FleetResult& one = results[i];
    logs += std::to_string(one.log) + " ";
    if (!one.failure.empty() && sum.failure.empty()) {
      sum.failure = one.failure + " (seed " + std::to_string(options.first_seed + i) + ")";
    }
    sum.rates.push_back(one.images_per_s);
    stalls.push_back(one.stalled);
    barriers.push_back(one.at_barrier);
    const double per_trainer = static_cast<double>(one.batches) / static_cast<double>(spec.trainers.size());
    if (per_trainer > 0) steps.push_back(as_seconds(one.took_ns) / per_trainer);
    sum.waits.add(one.waits);
    double busy = 0;
    for (const FleetResult::Loader& loader : one.loaders) busy += loader.busy / static_cast<double>(one.loaders.size());
    sum.loaders_busy += busy / static_cast<double>(seeds);
    sum.busiest_link += one.busiest_link / static_cast<double>(seeds);
    sum.first_batch_s += as_seconds(one.first_batch_ns) / static_cast<double>(seeds);
  }
  sum.images_per_s = estimate(sum.rates);
  sum.stalled = estimate(stalls);
  sum.at_barrier = estimate(barriers);
  sum.step_s = estimate(steps);
  sum.log = hash128(logs).hex();
  sum.naive = bounds_of(spec);
  return sum;
}

nlohmann::json to_json(const Prediction& p) {
  const auto estimate_json = [](const Estimate& e) {
    return nlohmann::json{{"mean", e.mean}, {"half_width_95", e.half_width}};
  };
  nlohmann::json parts = nlohmann::json::array();
  for (const Bounds::Part& part : p.naive.parts) {
    parts.push_back({{"name", part.name}, {"images_per_s", part.images_per_s}});
  }
  nlohmann::json json = {
      {"images_per_s", estimate_json(p.images_per_s)},
      {"stalled", estimate_json(p.stalled)},
      {"at_barrier", estimate_json(p.at_barrier)},
      {"step_s", estimate_json(p.step_s)},
      {"wait_ms",
       {{"mean", p.waits.mean() * 1e-6},
        {"p50", static_cast<double>(p.waits.quantile(0.5)) * 1e-6},
        {"p90", static_cast<double>(p.waits.quantile(0.9)) * 1e-6},
        {"p99", static_cast<double>(p.waits.quantile(0.99)) * 1e-6},
        {"p999", static_cast<double>(p.waits.quantile(0.999)) * 1e-6},
        {"most", static_cast<double>(p.waits.most()) * 1e-6}}},
      {"loaders_busy", p.loaders_busy},
      {"busiest_link", p.busiest_link},
      {"first_batch_s", p.first_batch_s},
      {"naive", {{"images_per_s", p.naive.images_per_s}, {"limit", p.naive.limit}, {"parts", parts}}},
      {"seeds", p.seeds},
      {"log", p.log}};
  if (!p.failure.empty()) json["failure"] = p.failure;
  return json;
}

}  // namespace penstock
