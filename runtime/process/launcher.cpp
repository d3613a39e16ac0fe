#include "runtime/process/launcher.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <set>
#include <string_view>
#include <utility>

namespace penstock {
namespace {

// A variable as a number; nothing when it is missing or is not one ("4(x2)" of SLURM_TASKS_PER_NODE, say).
std::optional<int> number(const std::map<std::string, std::string>& environment, const char* name) {
  const auto found = environment.find(name);
  if (found == environment.end()) return std::nullopt;
  const std::string& text = found->second;
  int value = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failed != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

}  // namespace

LauncherInfo detect_launcher(const std::map<std::string, std::string>& environment) {
  const auto get = [&](const char* name) { return number(environment, name); };
  LauncherInfo info;
  if (const auto size = get("OMPI_COMM_WORLD_SIZE")) {
    info.kind = LauncherKind::open_mpi;
    info.world_size = *size;
    info.rank = get("OMPI_COMM_WORLD_RANK");
    info.local_rank = get("OMPI_COMM_WORLD_LOCAL_RANK");
    info.local_size = get("OMPI_COMM_WORLD_LOCAL_SIZE");
    return info;
  }
  if (const auto size = get("PMI_SIZE")) {
    info.kind = LauncherKind::pmi;
    info.world_size = *size;
    info.rank = get("PMI_RANK");
    info.local_rank = get("MPI_LOCALRANKID");
    return info;
  }
  // Inside a batch script SLURM_NTASKS is set too, and a single process started there is not one of that many: only a
  // step has a number of tasks of its own.
  if (get("SLURM_STEP_NUM_TASKS") && get("SLURM_PROCID")) {
    const int tasks = *get("SLURM_STEP_NUM_TASKS");
    if (tasks > 1) {
      info.kind = LauncherKind::slurm;
      info.world_size = tasks;
      info.rank = get("SLURM_PROCID");
      info.local_rank = get("SLURM_LOCALID");
      return info;
    }
    return info;
  }
  // Open MPI 4's world of one process: the process has called MPI_Init, or is a child of one that has.
  const auto start = environment.find("OMPI_MCA_ess");
  if (start != environment.end() && start->second == "singleton") return info;
  if (environment.count("PMIX_RANK") != 0) {
    info.kind = LauncherKind::pmix;
    info.world_size = 0;
    info.rank = get("PMIX_RANK");
  }
  return info;
}

const char* launcher_name(LauncherKind kind) {
  switch (kind) {
    case LauncherKind::open_mpi: return "mpirun (Open MPI)";
    case LauncherKind::pmix: return "a PMIx launcher";
    case LauncherKind::pmi: return "mpiexec (PMI)";
    case LauncherKind::slurm: return "srun";
    case LauncherKind::none: break;
  }
  return "nothing";
}

bool mpirun_survives_ranks(const std::map<std::string, std::string>& environment) {
  for (const char* name : {"OMPI_MCA_orte_enable_recovery", "OMPI_MCA_mpi_ft_enable"}) {
    const auto found = environment.find(name);
    if (found != environment.end() && (found->second == "1" || found->second == "true")) return true;
  }
  return false;
}

std::map<std::string, std::string> current_environment() {
  std::map<std::string, std::string> found;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string_view::npos) found.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  if (found.count("PMIX_RANK") == 0) return found;
  std::ifstream file("/proc/self/environ", std::ios::binary);
  const std::string first{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  return without_later_pmix(std::move(found), first);
}

std::map<std::string, std::string> without_later_pmix(std::map<std::string, std::string> now, std::string_view first) {
  std::set<std::string_view> names;
  for (std::string_view left = first; !left.empty();) {
    const std::string_view entry = left.substr(0, left.find('\0'));
    left.remove_prefix(std::min(left.size(), entry.size() + 1));
    const std::string_view name = entry.substr(0, entry.find('='));
    if (names.empty() && (name.size() == entry.size() || now.count(std::string(name)) == 0)) return now;
    names.insert(name);
  }
  if (names.empty()) return now;
  std::erase_if(now, [&](const auto& variable) {
    return variable.first.starts_with("PMIX_") && names.count(variable.first) == 0;
  });
  return now;
}

void end_stranded_daemon(int parent, double wait_limit_s) noexcept {
  if (parent < 0) return;
  const pid_t pid = getppid();
  char name[16] = {};
  try {
    std::ifstream("/proc/" + std::to_string(pid) + "/comm").getline(name, sizeof name);
  } catch (...) {
    return;
  }
  if (std::string_view(name) != "orted") return;
  pollfd gone{parent, POLLIN, 0};
  // It is our parent still, so its number cannot have been given to another process.
  if (poll(&gone, 1, static_cast<int>(wait_limit_s * 1000)) == 0 && getppid() == pid) kill(pid, SIGTERM);
}

}  // namespace penstock
