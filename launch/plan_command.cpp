// `penstock plan`: how many loaders, and on which machines, a job needs.
#include <unistd.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "launch/command.h"
#include "launch/output_file.h"
#include "launch/plan_input.h"
#include "runtime/base/clock.h"
#include "runtime/base/json_text.h"
#include "runtime/simulate/plan/html_report.h"
#include "runtime/simulate/plan/plan_json.h"

namespace penstock {
namespace {

constexpr int kOutOfReach = 6;

void print_choice(const char* what, const std::optional<FleetChoice>& choice, const std::string& currency) {
  if (!choice) return;
  std::printf(
      "  %-9s %s: %.0f ± %.0f images/s, lost %.1f %%, 99 of 100 waits below %.1f ms, threads busy %.0f %%, busiest "
      "link %.0f %%",
      what, choice->name().c_str(), choice->prediction.images_per_s.mean, choice->prediction.images_per_s.half_width,
      100 * choice->lost, static_cast<double>(choice->prediction.waits.quantile(0.99)) * 1e-6,
      100 * choice->prediction.loaders_busy, 100 * choice->prediction.busiest_link);
  if (choice->price_per_hour > 0) {
    const double million_s = 1e6 / std::max(1.0, choice->prediction.images_per_s.mean);
    std::printf(", %s%.2f an hour, %s%.3f for a million images", currency.c_str(), choice->price_per_hour,
                currency.c_str(), choice->price_per_hour * million_s / 3600);
  }
  std::printf("\n");
}

struct PlanRequest {
  PlanArguments arguments;
  std::string target;
  std::string html;
  bool draws = false;  // there: html
};

std::string command_of(const PlanRequest& request) {
  std::string text = "penstock plan " + request.arguments.job + " " + request.arguments.cluster + " --profile " +
                     request.arguments.profile;
  if (!request.target.empty()) text += " --target " + request.target;
  const PlanArguments& given = request.arguments;
  for (const std::string& word : given.overrides) text += " " + word;
  if (!given.split.empty()) text += " --split " + given.split;
  if (given.samples > 0) text += " --samples " + std::to_string(given.samples);
  if (given.epochs != 1) text += " --epochs " + std::to_string(given.epochs);
  if (given.steps > 0) text += " --steps " + std::to_string(given.steps);
  if (given.warmup_steps >= 0) text += " --warmup-steps " + std::to_string(given.warmup_steps);
  text += " --seeds " + std::to_string(given.seeds);
  if (given.no_barrier) text += " --no-barrier";
  return text;
}

int plan(const PlanRequest& request) {
  const PlanTarget target = parse_target(request.target);
  if (request.draws) check_output_file(request.html);
  const PlanInput input = plan_input(request.arguments);
  PlanOptions options;
  options.seeds = request.arguments.seeds;
  options.screening_seeds = std::min<int64_t>(3, request.arguments.seeds);
  if (request.draws) options.curve_points = 12;
  const bool shows = !request.arguments.quiet && ::isatty(STDERR_FILENO) == 1;
  const MonotonicClock clock;
  if (shows) {
    options.progress = [](const std::string& what) {
      std::fprintf(stderr, "\r\033[Kpenstock: simulating %s", what.c_str());
    };
  } else if (!request.arguments.quiet) {
    // A plan may take minutes. One that takes seconds leaves a log as it was.
    options.progress = [&clock, last = clock.now(), simulated = 0](const std::string& what) mutable {
      const Nanoseconds now = clock.now();
      ++simulated;
      if (now - last < 10 * kSecond) return;
      last = now;
      std::fprintf(stderr, "penstock: simulating %s, number %d\n", what.c_str(), simulated);
      std::fflush(stderr);
    };
  }
  const FleetPlan plan = find_plan(input, target, options);
  if (request.draws) {
    if (shows) std::fputs("\r\033[Kpenstock: drawing", stderr);
    const std::string page = plan_page(plan, input, command_of(request));
    write_output_file(request.html, page);
  }
  if (shows) std::fputs("\r\033[K", stderr);
  if (request.arguments.json) {
    nlohmann::json json = to_json(plan);
    json["profile"] = {{"file", request.arguments.profile}, {"hash", input.profile.hash}};
    json["entered_by_hand"] = entered_by_hand(input);
    std::printf("%s\n", json_text_replacing(json).c_str());
  } else {
    std::printf("%s\n", plan.sentence.c_str());
    if (!plan.remedy.empty()) std::printf("  help: %s\n", plan.remedy.c_str());
    print_choice("smallest", plan.smallest, input.cluster.currency);
    print_choice("cheapest", plan.cheapest, input.cluster.currency);
    print_choice("safe", plan.safe, input.cluster.currency);
    if (!plan.reachable) print_choice("largest", plan.largest, input.cluster.currency);
    if (plan.reachable && !plan.safe) std::printf("  no fleet of this cluster may lose a machine and still reach it\n");
    if (const auto& best = plan.cheapest ? plan.cheapest : plan.largest)
      std::printf("  %s\n", trust_line(*best, input).c_str());
    std::printf("  %zu fleets simulated, by the profile of %s (%s)\n", plan.looked_at.size(),
                input.profile.machine.c_str(), input.profile.date.c_str());
    print_entered_by_hand(stdout, entered_by_hand(input));
  }
  return plan.reachable ? 0 : kOutOfReach;
}

}  // namespace

void add_plan(CLI::App& app, Chosen& chosen) {
  auto request = std::make_shared<PlanRequest>();
  CLI::App* command = app.add_subcommand(
      "plan",
      "how many loaders a job needs, and on which machines; exit code 6 where no fleet of the cluster is enough");
  add_plan_arguments(*command, request->arguments, false);
  command
      ->add_option(
          "--target", request->target,
          "12000img/s of all trainers; or 1%: the share of the programs' pace that may be lost to loading (2 % where "
          "none is given)")
      ->type_name("TARGET");
  command->add_option("--html", request->html, "write a page with pictures, which opens without a network")
      ->type_name("FILE");
  command->callback([=, &chosen] {
    request->draws = command->count("--html") > 0;
    chosen.run = [=] { return plan(*request); };
  });
}

}  // namespace penstock
