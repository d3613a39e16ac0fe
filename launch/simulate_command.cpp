// `penstock simulate`: what a job would do on a cluster, by the production balancer in virtual time.
#include <unistd.h>

#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <span>

#include "launch/command.h"
#include "launch/plan_input.h"
#include "runtime/base/atomic_file.h"
#include "runtime/base/error.h"
#include "runtime/base/json_text.h"

namespace penstock {
namespace {

std::string percent(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %%", 100 * share);
  return text;
}

// What a prediction was made from and of, so that the runs that follow can be held against it.
nlohmann::json of_input(const PlanArguments& arguments, const PlanInput& input, const FleetSpec& spec) {
  nlohmann::json json = {{"job", arguments.job},
                         {"cluster", arguments.cluster},
                         {"overrides", arguments.overrides},
                         {"what_ifs", arguments.what_ifs},
                         {"split", input.split},
                         {"profile",
                          {{"file", arguments.profile},
                           {"hash", input.profile.hash},
                           {"machine", input.profile.machine},
                           {"date", input.profile.date}}},
                         {"fleet",
                          {{"nodes", spec.nodes.size()},
                           {"trainers", spec.trainers.size()},
                           {"loaders", spec.loaders.size()},
                           {"threads", input.job.loader.threads}}},
                         {"batch_size", spec.batch_size},
                         {"epochs", spec.epochs},
                         {"steps", spec.steps},
                         {"warmup_steps", spec.warmup_steps},
                         {"samples", spec.dataset_size},
                         {"barrier", spec.barrier},
                         {"policy", name_of(spec.policy)}};
  nlohmann::json by_hand = nlohmann::json::array();
  for (const auto& [name, node] : input.cluster.nodes) {
    if (node.gpus > 0) by_hand.push_back("nodes." + name + ".gpu_images_per_s");
  }
  if (input.cluster.program.step_ms > 0) by_hand.push_back("program.step_ms");
  if (!by_hand.empty()) json["entered_by_hand"] = by_hand;
  return json;
}

void print_prediction(const PlanInput& input, const FleetSpec& spec, const Prediction& p) {
  std::printf("%.0f images/s (95 %% interval: %.1f to either side); the programs wait for data %s of the time (± %s)\n",
              p.images_per_s.mean, p.images_per_s.half_width, percent(p.stalled.mean).c_str(),
              percent(p.stalled.half_width).c_str());
  std::printf("  %zu trainers, %zu loaders of %d threads on %zu machines; %lld simulations\n", spec.trainers.size(),
              spec.loaders.size(), input.job.loader.threads, spec.nodes.size(), static_cast<long long>(p.seeds));
  std::printf("  waits for a batch: mean %.1f ms, 99 of 100 below %.1f ms, longest %.1f ms; first batch after %.2f s\n",
              p.waits.mean() * 1e-6, static_cast<double>(p.waits.quantile(0.99)) * 1e-6,
              static_cast<double>(p.waits.most()) * 1e-6, p.first_batch_s);
  std::printf("  loaders' threads busy %s, the busiest link %s\n", percent(p.loaders_busy).c_str(),
              percent(p.busiest_link).c_str());
  if (!p.naive.parts.empty()) {
    std::printf("  each part alone: %.0f images/s, and not more because of %s\n", p.naive.images_per_s,
                p.naive.limit.c_str());
  }
}

int simulate(const PlanArguments& arguments) {
  const PlanInput input = plan_input(arguments);
  FleetSpec spec = fleet_of(input, what_ifs_of(arguments));
  spec.policy = arguments.policy;
  if (!arguments.balancer_log.empty() && spec.policy != FleetPolicy::production) {
    throw Error(ErrorKind::usage, "--balancer-log is of the balancer, and another policy decides here",
                "leave --policy out");
  }
  PredictOptions options;
  options.seeds = arguments.seeds;
  const bool shows = !arguments.quiet && !arguments.json && ::isatty(STDERR_FILENO) == 1;
  if (shows) {
    options.progress = [&](int64_t done) {
      std::fprintf(stderr, "\rpenstock: %lld of %lld simulations", static_cast<long long>(done),
                   static_cast<long long>(arguments.seeds));
      if (done == arguments.seeds) std::fputs("\r\033[K", stderr);
    };
  }
  const Prediction prediction = predict(spec, options);
  if (!arguments.balancer_log.empty()) {
    std::string log;
    (void)simulate_fleet(spec, {.seed = options.first_seed, .balancer_log = &log});
    write_new_file(arguments.balancer_log, std::as_bytes(std::span(log)));
  }
  if (arguments.json) {
    nlohmann::json json = of_input(arguments, input, spec);
    json["prediction"] = to_json(prediction);
    std::printf("%s\n", json_text_replacing(json).c_str());
  } else {
    print_prediction(input, spec, prediction);
  }
  if (prediction.failure.empty()) return 0;
  std::fprintf(stderr, "penstock: in the simulation the job ends: %s\n", prediction.failure.c_str());
  return 1;
}

}  // namespace

void add_simulate(CLI::App& app, Chosen& chosen) {
  auto arguments = std::make_shared<PlanArguments>();
  CLI::App* command =
      app.add_subcommand("simulate", "what a job would do on a cluster: throughput, waits, and what faults cost");
  add_plan_arguments(*command, *arguments, true);
  command
      ->add_option("--balancer-log", arguments->balancer_log,
                   "what the balancer was told and decided, in the first simulation; for `penstock replay`")
      ->type_name("FILE");
  std::map<std::string, FleetPolicy> policies;
  for (const FleetPolicy policy : {FleetPolicy::production, FleetPolicy::fixed, FleetPolicy::round_robin,
                                   FleetPolicy::shortest_queue, FleetPolicy::power_of_two}) {
    policies[name_of(policy)] = policy;
  }
  command
      ->add_option("--policy", arguments->policy,
                   "who decides which loader makes a chunk: production, the balancer; or one to compare it with")
      ->transform(CLI::CheckedTransformer(policies, CLI::ignore_case).description(""))
      ->type_name("production|fixed|round-robin|shortest-queue|power-of-two");
  command->callback([=, &chosen] { chosen.run = [=] { return simulate(*arguments); }; });
}

}  // namespace penstock
