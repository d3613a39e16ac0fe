// The mpirun line for a job: written for the MPI found, the user, the cores and the hosts; printed or run.
//
//   LaunchRequest request;  request.job = "job.yaml"; request.loaders = 2; request.program = {"python", "train.py"};
//   const MpiFound mpi = find_mpirun();                                  // Error(usage) where there is none we know
//   const LaunchLine line = launch_line(request, mpi);                   // pure
//   std::puts(shell_quoted(line.argv).c_str());                          // --print
//   return run_launch_line(line);                                        // --run
//
// Purpose: one flag forgotten makes mpirun refuse (root, cores), bind a loader's threads to one core, or leave segments
//   in /dev/shm. The flags are decided here, once, and shown.
// What is added: --oversubscribe for more ranks than cores; --allow-run-as-root for root; --bind-to none, since ranks
//   share the cores themselves; LD_LIBRARY_PATH for an Open MPI that is not the system's; Open MPI's session files in a
//   private folder (0700, in $TMPDIR), told to every rank in PENSTOCK_SESSION_FOLDER and removed by the last process of the
//   job on each node (runtime/process/session_folder.h).
//   In the environment of mpirun, unless set: HWLOC_COMPONENTS=-gl, without which it may wait for a name server
//   (launch/findings.h, knows_localhost()).
//   --enable-recovery (Open MPI 4) or --with-ft ulfm (5): without, mpirun ends the whole job where one loader dies.
//   Over several nodes, keepalive for mpirun's own connections: by itself it notices a lost node after five minutes.
// Nodes that only load, or only train: two parts of one line (MPMD), each with --role.
// Sources: launch_line.cpp writes the line; run_mpirun.cpp finds mpirun, and runs a job under it.
// Thread-safety: run_launch_line() blocks signals of the calling thread; call it from a program without other threads.
// Failure: Error(usage) with what to write instead; run_launch_line() throws Error(runtime) where mpirun cannot start.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "launch/host_list.h"
#include "launch/job_outcome.h"

namespace penstock {

struct MpiFound {
  std::string mpirun = "mpirun";
  int major = 0;  // of Open MPI
  int minor = 0;
  int patch = 0;
  std::string library_folder;  // of its libmpi, where that is not the system's
};

// From the output of `mpirun --version`. Error(usage), quoting what was found, for anything but Open MPI 4 and 5.
MpiFound parse_mpirun_version(const std::string& text);
// Runs `mpirun --version`; the mpirun may be another name or path. An Open MPI that has a folder of its own (PyPI's, a
// site's) brings its libmpi, which the ranks must find before the system's.
MpiFound find_mpirun(const std::string& mpirun = "mpirun");

struct LaunchRequest {
  std::string job;                     // path of the job file
  std::vector<std::string> overrides;  // "key.sub=value", passed on
  std::string command = "run";         // or "serve"
  std::vector<std::string> options;    // of that command, passed on ("--json", …)
  std::vector<std::string> program;    // after --; empty: the job's own
  std::string penstock = "penstock";   // the program that every rank runs
  int trainers = 1;                    // roles.trainers, per node
  bool trainers_given = false;         // it stands in the job, and is no default
  int loader_threads = 2;              // loader.threads
  double grace_s = 5;                  // trainer.grace_s
  double lost_after_s = 10;            // balancer.lost_after_s
  double start_timeout_s = 300;        // mpi.start_timeout_s
  int ranks = 0;                       // -n, of the whole job; 0: by `loaders`
  int loaders = 0;                     // --loaders, per node; 0: as many as the cores of this node hold, one at least
  std::vector<std::string> hosts;      // --host
  std::string hostfile;                // --hostfile
  std::vector<std::string> hostfile_hosts;  // the different hosts in it
  std::vector<HostSlots> trainer_hosts;     // --trainer-host, --trainer-hostfile: with the next, instead of those above
  std::vector<HostSlots> loader_hosts;
  std::string trainers_option = "--trainer-host";  // which option said how many train where, for messages
  std::string agent;  // what mpirun calls to reach another host; empty: what it finds, a batch system or ssh
  int cores = 1;      // of this node
  bool root = false;
  std::string session_folder;  // from new_session_folder_name(); empty: none
  std::map<std::string, std::string>
      environment;  // PENSTOCK_CFG__* of it go to other hosts; the rest is mpirun's affair
};

struct LaunchLine {
  std::vector<std::string> argv;
  size_t second_part = 0;  // where the loaders' part begins in it; 0: all ranks are in one
  int ranks = 0;
  int nodes = 1;
  bool remote = false;                  // some rank is not on this host
  std::vector<std::string> rank_hosts;  // where each rank is to be; empty where all are here
  std::string penstock;                 // the program that every rank runs
  std::vector<std::string> agent;       // what reaches another host, as mpirun has it; empty: a batch system's
  std::string session_folder;
  double grace_s = 5;
  double lost_after_s = 10;
  double start_timeout_s = 300;
  // Ends the job in good order where it can (true): what SIGTERM does before mpirun gets it, which would not wait for
  // its ranks. Empty: nothing can.
  std::function<bool()> end_in_order;
};

LaunchLine launch_line(const LaunchRequest& request, const MpiFound& mpi);

std::string shell_quoted(const std::vector<std::string>& argv);  // one line for a POSIX shell

// The exit code of the job: what its ranks said (job_outcome.h). Where none has begun, mpirun's: 1 to 5 are the ranks' own and
// pass; killed by a signal it is 5, and so is 0, because nobody said that the job was done; anything else is 1. After an
// interruption, 128 + the signal, as shells have it.
int launch_exit_code(int wait_status, const JobOutcome& job, int interrupted_by);

// How run_launch_line() saw the end.
struct LaunchEnd {
  int wait_status = 0;        // mpirun's
  bool ended_mpirun = false;  // it was killed by run_launch_line() itself, which has said why
  int interrupted_by = 0;     // the signal
  std::string host;           // this one
  uint64_t oom_kills = 0;     // on this host, while the job ran
  uint64_t memory_limit = 0;  // ulimit -v, in bytes, which this host's ranks inherit; 0: none
};

// The last line of the job, for people: cause, rank, host, signal; empty after an interruption and after a good end with
// all ranks.
std::string closing_line(const LaunchEnd& end, const JobOutcome& job);

inline constexpr double kHelpersEnd_s = 12;  // what ranks' helpers take at most to end, beyond the grace

// Starts mpirun, passes SIGUSR1 and SIGUSR2 on, waits for it and, through the session folder, for this node's helpers
// (the grace, at most), and removes the folder, which is made if missing. SIGINT, SIGTERM, SIGHUP and SIGQUIT ask the
// ranks for an end in order, a second one after two seconds for an end at once (EndRequest in signals.h), whether they
// came to this process alone, to its whole group or, SIGTERM and SIGINT, to mpirun alone. mpirun is killed, and this
// said, where ranks are there four seconds behind the grace, or it is itself after eight; where no rank was heard of within
// mpi.start_timeout_s (a minute at most, where all are on this host); or where ranks are left that cannot end
// (JobOutcome::stuck). When mpirun has ended, the last words of ranks that are still on their way are waited for, two
// seconds at most. One line at the end says how the job ended, unless it was well and with all ranks.
int run_launch_line(const LaunchLine& line);

}  // namespace penstock
