// For programs that are MPI ranks themselves: some of their ranks load, the others train.
//
//   int provided = 0;
//   MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
//   {
//     penstock::mpi::Rank rank = penstock::mpi::join(MPI_COMM_WORLD, "job.yaml");      // collective
//     if (rank.loads()) {
//       rank.serve();                                                                  // until the trainers have left
//     } else {
//       penstock::DataLoader train = rank.loader("train");
//       for (auto& batch : train) { step(batch); MPI_Allreduce(..., rank.trainers()); }
//       rank.leave();                                                                  // collective among the trainers
//     }
//   }
//   MPI_Finalize();
//
// Who loads: on each node the local ranks from the job's roles.trainers on; or JoinOptions::role says it, on all ranks.
//   Rank 0 trains. Streams and hashes are those of `penstock run` with as many trainers, and of an embedded program.
// There is no recovery, unlike under `penstock run`: a rank that dies ends the job. A program that throws past a Rank
//   leaves badly: loaders' serve() and the other trainers' DataLoaders and leave() throw Error(peer_lost). Ranks that wait
//   in MPI for it are the program's affair: call MPI_Abort.
// MPI: the library's thread calls it beside the program, on a duplicate of the communicator, so MPI_THREAD_MULTIPLE is
//   required. The MPI of the program must be the one that penstock's MPI component was built on.
// serve() should follow join() soon: trainers' first batches wait for it.
// Thread-safety, ownership, failure: as runtime/ranks/joined_rank.h says. DataLoaders and batches may outlive leave()
//   and MPI_Finalize, and give nothing new then. MPI_Finalize without leave() ends the job badly, by name.
#pragma once

#include <mpi.h>

#include <memory>
#include <string>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/client/data_loader.h"
#include "runtime/ranks/joined_rank.h"

namespace penstock::mpi {

class Rank {
 public:
  explicit Rank(std::shared_ptr<JoinedRank> joined) : joined_(std::move(joined)) {
    trainers_ = MPI_Comm_f2c(joined_->trainers_communicator());
  }
  Rank(Rank&& other) noexcept
      : joined_(std::move(other.joined_)), trainers_(std::exchange(other.trainers_, MPI_COMM_NULL)) {}
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;
  ~Rank() { free_trainers(); }

  bool loads() const noexcept { return joined_->loads(); }
  int number() const noexcept { return joined_->number(); }          // trainer 0, 1, ..., or loader
  int num_trainers() const noexcept { return joined_->trainers(); }  // in all
  // The trainers' communicator, in their order; MPI_COMM_NULL on loaders. Good until leave().
  MPI_Comm trainers() const noexcept { return trainers_; }

  DataLoader loader(const std::string& split, DataLoaderOptions options = {}) const {
    options.receiver = joined_;
    options.overrides.insert(options.overrides.begin(), joined_->overrides().begin(), joined_->overrides().end());
    return DataLoader(joined_->job_file(), split, options);
  }

  void serve() { joined_->serve(); }

  // Trainer 0 gets the job's report, as JSON. `well`: false where the program could not do what it wanted to.
  std::string leave(bool well = true) {
    std::string report = joined_->leave(well);
    free_trainers();
    return report;
  }

 private:
  void free_trainers() {
    int over = 0;
    MPI_Finalized(&over);
    if (trainers_ != MPI_COMM_NULL && over == 0) MPI_Comm_free(&trainers_);
    trainers_ = MPI_COMM_NULL;
  }

  std::shared_ptr<JoinedRank> joined_;
  MPI_Comm trainers_ = MPI_COMM_NULL;
};

inline Rank join(MPI_Comm communicator, const std::string& job_file, const JoinOptions& options = {}) {
  int running = 0;
  MPI_Initialized(&running);  // of the few calls that may come before
  if (running == 0) {
    throw Error(ErrorKind::usage, "join: MPI has not been started",
                "call MPI_Init_thread(..., MPI_THREAD_MULTIPLE, ...) before it");
  }
  return Rank(std::make_shared<JoinedRank>(MPI_Comm_c2f(communicator), job_file, options));
}

}  // namespace penstock::mpi
