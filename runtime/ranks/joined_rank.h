// A rank of a program that speaks MPI itself: it trains or loads within the program's own process. bindings/mpi/join.h
// and the Python package's penstock.mpi are its faces; this knows communicators as Fortran handles, and no mpi.h.
//
//   auto rank = std::make_shared<JoinedRank>(MPI_Comm_c2f(comm), "job.yaml", options);        // collective
//   if (rank->loads()) return rank->serve();                 // until the trainers have left
//   options.receiver = rank;  DataLoader train("job.yaml", "train", options);                 // any number of them
//   std::string report = rank->leave(true);                  // collective among the trainers
//
//   every rank                trainers                              loaders
//   join: roles, endpoint ──▶ a thread runs the receiver            serve(): this thread runs the loader
//                             leave(well): "finished" ──goodbye──▶  serve() returns
//                             ◀──────────── all at the end: a barrier, MPI goes on ────────────▶
//
// What differs from `penstock run`: no helper, no child process, no cores are chosen, no recovery. A rank that dies ends
//   the job: programs see Error(peer_lost) from the loaders that feed them, and from leave() or serve().
// MPI: a thread of the library calls it, on a duplicate of the communicator, beside the program's own calls; so it must
//   run with MPI_THREAD_MULTIPLE, and be ended by the program after leave() and serve().
// Ownership: DataLoaders share the rank; it lives as long as the last of them. The trainers' communicator is the
//   caller's to free, before MPI_Finalize.
// Thread-safety: connect() and problem() from any thread; the rest from one.
// Failure: Error(usage) where MPI does not run, or without MPI_THREAD_MULTIPLE; Error(config | usage) for a
//   communicator without a loader or a trainer, and for ranks with different jobs; Error(peer_lost).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/embedded/receiver_host.h"
#include "runtime/process/placement.h"

namespace penstock {

struct JoinOptions {
  std::vector<std::string> overrides;  // of the job, the same on every rank
  std::optional<Role> role;            // on all ranks or none: then roles.trainers says it for each node
};

class JoinedRank final : public ReceiverHost {
 public:
  JoinedRank(int communicator, const std::string& job_file, const JoinOptions& options);
  // Without leave(), a trainer leaves badly, and the job ends so.
  ~JoinedRank() override;
  JoinedRank(const JoinedRank&) = delete;
  JoinedRank& operator=(const JoinedRank&) = delete;

  bool loads() const noexcept;
  int number() const noexcept;    // trainer 0, 1, ..., or loader
  int trainers() const noexcept;  // in all
  int local_number() const noexcept;
  int trainers_communicator() const noexcept;  // Fortran handle; on loaders that of MPI_COMM_NULL
  const std::string& job_file() const noexcept;
  const std::vector<std::string>& overrides() const noexcept;

  // A trainer's, for its DataLoaders.
  UniqueFd connect() override;
  std::string problem() const override;

  void serve();
  // The job's report as JSON on trainer 0, else nothing. `well`: the program did what it wanted to.
  std::string leave(bool well);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace penstock
