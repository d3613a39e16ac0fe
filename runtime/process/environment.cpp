#include "runtime/process/environment.h"

#include <unistd.h>

#include <utility>

namespace penstock {

bool is_launcher_variable(std::string_view name) {
  for (const std::string_view prefix : {"OMPI_", "PMIX_", "PMI_", "PRTE_", "SLURM_NTASKS", "SLURM_STEP_"}) {
    if (name.substr(0, prefix.size()) == prefix) return true;
  }
  // SLURM_STEPID is the old name of SLURM_STEP_ID.
  for (const std::string_view whole : {"SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_STEPID"}) {
    if (name == whole) return true;
  }
  return false;
}

std::vector<std::string> trainer_environment(const std::vector<std::string>& inherited, const TrainerPlace& place) {
  const std::vector<std::pair<std::string, std::string>> ours{
      {"RANK", std::to_string(place.rank)},
      {"WORLD_SIZE", std::to_string(place.world_size)},
      {"LOCAL_RANK", std::to_string(place.local_rank)},
      {"LOCAL_WORLD_SIZE", std::to_string(place.local_world_size)},
      {"MASTER_ADDR", place.master_addr},
      {"MASTER_PORT", std::to_string(place.master_port)},
      {"PENSTOCK_RECEIVER", place.receiver},
      {"PENSTOCK_TOKEN", place.token},
      {"PENSTOCK_JOB", place.job},
  };
  std::vector<std::string> result;
  for (const std::string& entry : inherited) {
    const std::string_view name = std::string_view(entry).substr(0, entry.find('='));
    bool replaced = is_launcher_variable(name);
    for (const auto& [key, value] : ours) replaced = replaced || name == key;
    if (!replaced) result.push_back(entry);
  }
  for (const auto& [key, value] : ours) result.push_back(key + "=" + value);
  return result;
}

std::vector<std::string> inherited_environment() {
  std::vector<std::string> found;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) found.emplace_back(*entry);
  return found;
}

}  // namespace penstock
