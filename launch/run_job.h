// `penstock run` and `penstock serve`: this process as one rank of a job.
//
// Under mpirun each rank takes its role (trainers first by local rank); without it the whole job runs here: a receiver
// and a helper for each trainer, and one loader, joined by the inproc transport.
//
//   a. the job file is read, then the helper is forked (before MPI and before any thread)
//   b. MPI starts; ranks tell each other host, cores and what they read; roles follow, or are said by --role
//   c. transports are made: shm for pairs on one node, mpi for the rest, or what the job says
//   d. a trainer opens its receiver and has its helper start the program; a loader loads
//   e. the programs end: loaders report, everybody leaves; rank 0 prints the report
// Serving differs in d and e: the receiver is found by the job's name (runtime/client/attach.h), no program is started,
// and the job ends by SIGTERM or SIGINT to any trainer's rank, by `serve --stop`, or after idle_s without a program.
// When anything fails, the first failure is what rank 0 prints and exits with; the others leave quietly.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/process/placement.h"

namespace penstock {

class EndReporter;
struct Job;

struct RunRequest {
  std::string job_file;
  std::vector<std::string> overrides;
  std::vector<std::string> program;  // empty: `penstock drain`, which takes every batch and does nothing with it
  int epochs = 1;                    // of the drain
  bool json = false;
  bool quiet = false;
  bool quiet_progress = false;
  std::string dump_folder;
  bool dump_raw = false;
  std::string profile_file;  // where a profile of the run goes (profile_command.h); empty: nowhere
  std::string profiled_by = "penstock run --profile";
  double seconds = 0;          // of the drain, at most; 0: all epochs
  std::string only_split;      // of the drain; empty: all
  std::optional<Role> role;    // --role: of this rank; nothing: by roles.trainers
  bool serve = false;          // open receivers and start nothing
  double idle_s = 0;           // serve: end after so long without a program; 0: do not
  EndReporter* end = nullptr;  // tells `penstock launch --run` how this rank ends; null: nobody asks
};

int run_job(const RunRequest& request);
// Error(usage) for a pipe (`<(penstock init ...)`) and the like.
void refuse_job_that_is_read_once(const std::string& path);

inline constexpr int kMostTrainersHere = 64;  // in one process

// Its two ways. In this process: trainers' receivers and one loader, each run by a thread (run_single_process.cpp).
int run_single_process(const RunRequest& request, const Job& job);
// As one rank of mpirun's (run_mpi_rank.cpp).
int run_mpi_rank(const RunRequest& request, const Job& job);

}  // namespace penstock
