// `penstock explain`: what a tenth more of each resource would bring.
#include <cstdio>
#include <nlohmann/json.hpp>

#include "launch/command.h"
#include "launch/plan_input.h"
#include "runtime/base/error.h"
#include "runtime/base/json_text.h"
#include "runtime/simulate/plan/explanation.h"

namespace penstock {
namespace {

int explain_fleet(const PlanArguments& arguments) {
  const PlanInput input = plan_input(arguments);
  const Explanation explanation = explain(fleet_of(input, what_ifs_of(arguments)), {.seeds = arguments.seeds});
  const Prediction& now = explanation.as_it_is;
  if (!now.failure.empty()) {
    throw Error(ErrorKind::runtime, "in the simulation the job ends, so nothing holds it up: " + now.failure,
                "`penstock simulate` with the same words says what it does until then");
  }
  if (arguments.json) {
    nlohmann::json json = {
        {"as_it_is", to_json(now)}, {"gains", nlohmann::json::array()}, {"entered_by_hand", entered_by_hand(input)}};
    for (const Gain& gain : explanation.gains) {
      json["gains"].push_back({{"what", gain.what},
                               {"images_per_s", gain.images_per_s},
                               {"gain", gain.gain},
                               {"half_width_95", gain.half_width},
                               {"stalled", gain.stalled}});
    }
    std::printf("%s\n", json_text_replacing(json).c_str());
    return 0;
  }
  const Gain& best = explanation.gains.front();
  if (best.gain > 0.005) {
    std::printf("What holds this job up: %s would bring %.1f %% more images/s.\n", best.what.c_str(), 100 * best.gain);
  } else {
    std::printf("Nothing alone holds this job up: no resource brings more than %.1f %%.\n",
                100 * std::max(0.0, best.gain));
  }
  std::printf("  %-48s %9.0f images/s, stalled %.1f %%\n", "as it is", now.images_per_s.mean, 100 * now.stalled.mean);
  for (const Gain& gain : explanation.gains) {
    std::printf("  %-48s %9.0f images/s, stalled %.1f %%: %+.1f %% (± %.1f)\n", gain.what.c_str(), gain.images_per_s,
                100 * gain.stalled, 100 * gain.gain, 100 * gain.half_width);
  }
  print_entered_by_hand(stdout, entered_by_hand(input));
  return 0;
}

}  // namespace

void add_explain(CLI::App& app, Chosen& chosen) {
  auto arguments = std::make_shared<PlanArguments>();
  CLI::App* command =
      app.add_subcommand("explain", "what a tenth more of each resource would bring a job on a cluster");
  add_plan_arguments(*command, *arguments, true);
  command->callback([=, &chosen] { chosen.run = [=] { return explain_fleet(*arguments); }; });
}

}  // namespace penstock
