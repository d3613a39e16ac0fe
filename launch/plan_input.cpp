#include "launch/plan_input.h"

#include <cstdio>

#include "launch/command.h"
#include "runtime/job/suggest.h"
#include "runtime/simulate/plan/plan_files.h"

namespace penstock {

void add_plan_arguments(CLI::App& command, PlanArguments& arguments, bool what_ifs) {
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
  command.add_option("--steps", arguments.steps, "steps of each epoch, at most; default: 150 for plan, else all")
      ->check(positive());
  command
      .add_option("--warmup-steps", arguments.warmup_steps,
                  "of these, the first ones that count for nothing; default: a tenth for plan, else none")
      ->check(not_negative());
  command.add_option("--seeds", arguments.seeds, "simulations, whose spread gives the intervals")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{10'000}));
  command.add_flag("--no-barrier", arguments.no_barrier, "trainers that do not wait for each other after each step");
  command.add_flag("--json", arguments.json, "one JSON object on stdout");
  command.add_flag("--quiet", arguments.quiet, "no progress");
  if (!what_ifs) return;
  command
      .add_option("--what-if", arguments.what_ifs,
                  "slow:LOADERx0.4, stop:LOADER@SECOND+SECONDS, kill:LOADER@SECOND, node:MACHINE@SECOND, "
                  "nic:MACHINEx0.5, tail:x3")
      ->type_name("WHAT")
      ->allow_extra_args(false);
}

PlanInput plan_input(const PlanArguments& arguments, const std::vector<std::string>& more_overrides) {
  PlanFiles files{arguments.job, arguments.cluster, arguments.profile, arguments.overrides, arguments.split};
  files.overrides.insert(files.overrides.end(), more_overrides.begin(), more_overrides.end());
  PlanInput input = read_plan_files(files);
  if (const std::string doubt = profile_doubt(input); !doubt.empty() && more_overrides.empty()) {
    std::fprintf(stderr, "penstock: %s\n", doubt.c_str());
  }
  const auto split = input.job.splits.find(input.split);
  const std::string index = split == input.job.splits.end() ? "" : split->second.dataset.index;
  if (!index.empty() && !input.sizes && more_overrides.empty()) {
    std::fprintf(stderr, "penstock: the index '%s' is not here, so samples have the sizes that the profile measured\n",
                 index.c_str());
  }
  input.samples = arguments.samples;
  input.epochs = arguments.epochs;
  input.steps = arguments.steps;
  input.warmup_steps = arguments.warmup_steps;
  input.barrier = !arguments.no_barrier;
  return input;
}

void print_entered_by_hand(std::FILE* out, const std::vector<std::string>& keys) {
  if (!keys.empty()) std::fprintf(out, "  entered by hand, and not measured: %s\n", list_of(keys, "and").c_str());
}

std::vector<WhatIf> what_ifs_of(const PlanArguments& arguments) {
  std::vector<WhatIf> list;
  for (const std::string& text : arguments.what_ifs) list.push_back(parse_what_if(text));
  return list;
}

}  // namespace penstock
