#include "runtime/simulate/plan/plan_files.h"

#include <algorithm>

namespace penstock {

bool of_cluster(const std::string& text) {
  static const std::vector<std::string> sections = {"nodes", "network", "storage", "program", "faults", "currency"};
  const std::string first = text.substr(0, text.find_first_of(".="));
  return std::find(sections.begin(), sections.end(), first) != sections.end();
}

std::string main_split(const Job& job) {
  for (const auto& [name, split] : job.splits) {
    if (split.mode == Mode::train) return name;
  }
  return job.splits.begin()->first;
}

PlanInput read_plan_files(const PlanFiles& files) {
  std::vector<std::string> job, cluster;
  for (const std::string& text : files.overrides) (of_cluster(text) ? cluster : job).push_back(text);
  PlanInput input;
  input.job = load_job(files.job, job);
  input.cluster = load_cluster(files.cluster, cluster);
  input.profile = read_profile(files.profile);
  input.split = files.split.empty() ? main_split(input.job) : files.split;
  return input;
}

}  // namespace penstock
