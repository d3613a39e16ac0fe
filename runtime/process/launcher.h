// What started this process: nothing special, mpirun, another process manager, or srun with several tasks.
//
//   const LauncherInfo started_by = detect_launcher(current_environment());
//   if (started_by.many_tasks()) ...   // a single-process loader here would feed every rank the same data
//
// A pure function of the variables, so that embedding can refuse, and the messages can name who launched. It reads no
// MPI: a process may be started by mpirun and never call MPI_Init.
// A program that is no task may call MPI_Init all the same (`from mpi4py import MPI` does): Open MPI makes it a world
//   of its own, and for that sets the variables of a PMIx task. current_environment() leaves those out, and
//   detect_launcher() knows the processes that such a program starts, which inherit them.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace penstock {

enum class LauncherKind {
  none,
  open_mpi,  // mpirun of Open MPI 4 or 5
  pmix,      // another PMIx launcher (or Open MPI's own daemon started by other means)
  pmi,       // mpiexec of MPICH, Intel MPI and relatives
  slurm,     // srun, without an MPI's own variables
};

struct LauncherInfo {
  LauncherKind kind = LauncherKind::none;
  int world_size = 1;       // 0: several processes perhaps, but the launcher does not say
  std::optional<int> rank;  // where it says
  std::optional<int> local_rank;
  std::optional<int> local_size;  // ranks on this node; of Open MPI's mpirun alone

  bool many_tasks() const noexcept { return world_size != 1; }
};

LauncherInfo detect_launcher(const std::map<std::string, std::string>& environment);
const char* launcher_name(LauncherKind kind);  // "mpirun (Open MPI)"

// Whether the mpirun that started this rank goes on when a rank dies: --enable-recovery of Open MPI 4, --with-ft ulfm of
// 5, or the settings behind them.
bool mpirun_survives_ranks(const std::map<std::string, std::string>& environment);

// This process's, without the variables of a PMIx task where it did not begin as one.
std::map<std::string, std::string> current_environment();
// The same of `now`, when `first` is what the process began with, as /proc/self/environ says. A process that has
// written its title over that (setproctitle) does not begin with a variable that is still there: nothing is left out
// then.
std::map<std::string, std::string> without_later_pmix(std::map<std::string, std::string> now, std::string_view first);

// For a rank that leaves because it lost the others: ends Open MPI 4's daemon that started it (orted, which serves this
// job alone) when that is still there after `wait_limit_s`. A node cut off in the middle of a message would keep its
// daemon for a quarter of an hour, TCP's own timeout; where mpirun can reach it, it goes by itself and sooner.
// `parent` is a pidfd of the parent process. Any other parent is left alone.
void end_stranded_daemon(int parent, double wait_limit_s) noexcept;

}  // namespace penstock
