#include "launch/plan_input.h"

#include <algorithm>

#include "launch/command.h"
#include "launch/profile_command.h"

namespace penstock {

bool of_cluster(const std::string& text) {
  static const std::vector<std::string> sections = {"nodes", "network", "storage", "program", "faults", "currency"};
  const std::string first = text.substr(0, text.find_first_of(".="));
  return std::find(sections.begin(), sections.end(), first) != sections.end();
}

void add_plan_arguments(CLI::App& command, PlanArguments& arguments) {
  command.add_option("job", arguments.job, "job file")->required()->type_name("JOB.yaml");
  command.add_option("cluster", arguments.cluster, "the machines")->required()->type_name("CLUSTER.yaml");
  command.add_option("overrides", arguments.overrides,
                     "key.sub=value of either file, such as loader.threads=8 nodes.cpu.count=4");
  command.add_option("--profile", arguments.profile, "what `penstock profile` or `penstock run --profile` measured")
      ->required()
      ->type_name("FILE");
  command.add_option("--split", arguments.split, "split; the first one that trains");
  command.add_option("--samples", arguments.samples, "samples of the data set; those that the profile comes from")
      ->check(positive());
  command.add_option("--epochs", arguments.epochs, "epochs")->capture_default_str()->check(positive());
  command.add_option("--steps", arguments.steps, "steps of each epoch, at most")->check(positive());
  command.add_option("--seeds", arguments.seeds, "simulations, whose spread gives the intervals")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{10'000}));
  command.add_flag("--no-barrier", arguments.no_barrier, "trainers that do not wait for each other after each step");
  command.add_flag("--json", arguments.json, "one JSON object on stdout");
  command.add_flag("--quiet", arguments.quiet, "no progress");
  command
      .add_option("--what-if", arguments.what_ifs,
                  "slow:LOADERx0.4, stop:LOADER@SECOND+SECONDS, kill:LOADER@SECOND, node:MACHINE@SECOND, "
                  "nic:MACHINEx0.5, tail:x3")
      ->type_name("WHAT")
      ->allow_extra_args(false);
}

PlanInput plan_input(const PlanArguments& arguments, const std::vector<std::string>& more_overrides) {
  std::vector<std::string> job, cluster;
  for (const auto* list : {&arguments.overrides, &more_overrides}) {
    for (const std::string& text : *list) (of_cluster(text) ? cluster : job).push_back(text);
  }
  PlanInput input;
  input.profile = read_profile(arguments.profile);
  input.job = load_job(arguments.job, job);
  input.cluster = load_cluster(arguments.cluster, cluster);
  input.split = arguments.split.empty() ? main_split(input.job) : arguments.split;
  input.samples = arguments.samples;
  input.epochs = arguments.epochs;
  input.steps = arguments.steps;
  input.barrier = !arguments.no_barrier;
  return input;
}

std::vector<WhatIf> what_ifs_of(const PlanArguments& arguments) {
  std::vector<WhatIf> list;
  for (const std::string& text : arguments.what_ifs) list.push_back(parse_what_if(text));
  return list;
}

}  // namespace penstock
