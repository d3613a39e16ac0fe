// `penstock simulate`: what a job would do on a cluster, by the production balancer in virtual time.
#include <unistd.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "launch/command.h"
#include "launch/output_file.h"
#include "launch/plan_input.h"
#include "runtime/base/error.h"
#include "runtime/base/json_text.h"
#include "runtime/simulate/plan/figure_text.h"

namespace penstock {
namespace {

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
  json["entered_by_hand"] = entered_by_hand(input);
  return json;
}

void print_prediction(const PlanInput& input, const FleetSpec& spec, const Prediction& p) {
  if (!p.failure.empty()) std::printf("The job ends: %s. Until then:\n", p.failure.c_str());
  if (p.seeds > 1) {
    std::printf(
        "%.0f images/s (95 %% interval: %.1f to either side); the programs wait for data %s of the time (± %s)\n",
        p.images_per_s.mean, p.images_per_s.half_width, percent_text(p.stalled.mean).c_str(),
        percent_text(p.stalled.half_width).c_str());
  } else {
    std::printf("%.0f images/s (of one simulation); the programs wait for data %s of the time\n", p.images_per_s.mean,
                percent_text(p.stalled.mean).c_str());
  }
  if (spec.barrier) {
    std::printf("  they wait for each other after a step %s of the time besides, and work in what is left\n",
                percent_text(p.at_barrier.mean).c_str());
  }
  std::printf("  %zu trainers, %zu loaders of %d threads on %zu machines; %lld simulations\n", spec.trainers.size(),
              spec.loaders.size(), input.job.loader.threads, spec.nodes.size(), static_cast<long long>(p.seeds));
  std::printf("  waits for a batch: mean %.1f ms, 99 of 100 below %.1f ms, longest %.1f ms; first batch after %.2f s\n",
              p.waits.mean() * 1e-6, static_cast<double>(p.waits.quantile(0.99)) * 1e-6,
              static_cast<double>(p.waits.most()) * 1e-6, p.first_batch_s);
  std::printf("  loaders' threads busy %s, the busiest link %s\n", percent_text(p.loaders_busy).c_str(),
              percent_text(p.busiest_link).c_str());
  if (!p.naive.parts.empty()) {
    std::printf("  each part alone: %.0f images/s, and not more because of %s\n", p.naive.images_per_s,
                p.naive.limit.c_str());
  }
  print_entered_by_hand(stdout, entered_by_hand(input));
}

int simulate(const PlanArguments& arguments) {
  const PlanInput input = plan_input(arguments);
  FleetSpec spec = fleet_of(input, what_ifs_of(arguments));
  spec.policy = arguments.policy;
  if (!arguments.balancer_log.empty() && spec.policy != FleetPolicy::production) {
    throw Error(ErrorKind::usage, "--balancer-log is of the balancer, and another policy decides here",
                "leave --policy out");
  }
  if (!arguments.balancer_log.empty()) check_output_file(arguments.balancer_log);
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
    write_output_file(arguments.balancer_log, log);
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
  std::vector<std::string> policies;
  for (const FleetPolicy policy : kFleetPolicies) policies.emplace_back(name_of(policy));
  command
      ->add_option_function<std::string>(
          "--policy",
          [arguments](const std::string& text) {
            for (const FleetPolicy policy : kFleetPolicies) {
              if (text == name_of(policy)) arguments->policy = policy;
            }
          },
          "who decides which loader makes a chunk: production, the balancer; or one to compare it with")
      ->check(CLI::IsMember(policies));
  command->callback([=, &chosen] { chosen.run = [=] { return simulate(*arguments); }; });
}

}  // namespace penstock
