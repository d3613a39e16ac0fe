#include "runtime/simulate/plan/plan_files.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "runtime/base/error.h"
#include "runtime/base/file_system.h"
#include "runtime/base/hash.h"
#include "runtime/base/json_text.h"
#include "runtime/datasets/index_file.h"

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

std::string pipeline_hash(const Job& job, const std::string& split) {
  const nlohmann::json all = parse_json(canonical_json(resolve_split(job, split)));
  const nlohmann::json& inner = all["split"];
  std::string text = json_text(inner["pipeline"]);
  if (inner.contains("gpu_pipeline")) text += json_text(inner["gpu_pipeline"]);
  return hash128(job.arithmetic + text).hex();
}

std::string profile_doubt(const PlanInput& input) {
  const bool known = !input.profile.pipeline.empty() && input.job.splits.count(input.split) != 0;
  if (!known || input.profile.pipeline == pipeline_hash(input.job, input.split)) return {};
  return "the profile is of other transforms than split '" + input.split +
         "' has, so samples may cost more or less, and be of another size; `penstock profile` measures these";
}

namespace {

std::shared_ptr<const std::vector<int64_t>> sizes_in(const std::string& index) {
  FileSystem& files = posix_file_system();
  std::error_code unreadable;
  if (index.empty() || !std::filesystem::exists(index, unreadable)) return nullptr;
  try {
    const SampleTable table = map_table(index, "", files);
    auto sizes = std::make_shared<std::vector<int64_t>>(static_cast<size_t>(table.size()));
    for (int64_t i = 0; i < table.size(); ++i)
      (*sizes)[static_cast<size_t>(i)] = static_cast<int64_t>(table.row(i).bytes);
    return sizes;
  } catch (const Error& error) {
    throw Error(ErrorKind::dataset, "cannot read the index '" + index + "': " + error.message(),
                "`penstock index` makes it anew");
  }
}

}  // namespace

PlanInput read_plan_files(const PlanFiles& files) {
  std::vector<std::string> job, cluster;
  for (const std::string& text : files.overrides) (of_cluster(text) ? cluster : job).push_back(text);
  PlanInput input;
  input.job = load_job(files.job, job);
  input.cluster = load_cluster(files.cluster, cluster);
  input.profile = read_profile(files.profile);
  input.split = files.split.empty() ? main_split(input.job) : files.split;
  const auto split = input.job.splits.find(input.split);
  if (split != input.job.splits.end()) input.sizes = sizes_in(split->second.dataset.index);
  return input;
}

}  // namespace penstock
