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
// The end: after a good goodbye all ranks meet at a barrier, within trainer.grace_s and a little. After a bad one nobody
//   waits for anybody; what MPI may still be sending then stays in memory until the process ends.
// MPI: a thread of the library calls it, on a duplicate of the communicator, beside the program's own calls; so it must
//   run with MPI_THREAD_MULTIPLE. After leave() and serve(), however they end, that thread is gone, and MPI_Finalize is
//   the program's. Called without leave(), MPI_Finalize ends the rank's part first, badly, and says so to the others.
// Ownership: DataLoaders share the rank; it lives as long as the last of them. The trainers' communicator is the
//   caller's to free, before MPI_Finalize.
// Waiting: join() for mpi.start_timeout_s in each of its steps; serve() and leave() until the job ends, which is as long
//   as the slowest trainer works: `while_waiting` is called meanwhile.
// fork(): a child has none of the threads: its copy refuses everything and is dropped without a word.
// Thread-safety: connect() and problem() from any thread; the rest from one.
// Failure: Error(usage) where MPI does not run, or without MPI_THREAD_MULTIPLE; Error(config | usage) for a
//   communicator without a loader or a trainer, and for ranks with different jobs; Error(peer_lost).
#pragma once

#include <functional>
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
  // In serve() and leave(), some times a second; what it throws ends the rank's part, badly, and comes out.
  std::function<void()> while_waiting;
};

class JoinedRank final : public ReceiverHost {
 public:
  JoinedRank(int communicator, const std::string& job_file, const JoinOptions& options);
  // Without leave() a trainer leaves badly, and the job ends so; it waits some seconds for the goodbye.
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
