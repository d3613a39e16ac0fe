// The options of a receiver, from which its parts read theirs. They come from a rank of `penstock run` or `serve`
// (launch/trainer.cpp), a rank that joined a job (ranks/joined_rank.cpp), or an embedded world.
//
//   ReceiverOptions options = receiver_options(job);  // embedded.h: what the job file says
//   options.self = rank; …                        // where it stands, which only the caller knows
//
// Thread-safety, ownership: plain data. Failure: none; nothing is checked here.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/coordinator/coordinator.h"
#include "transport/transport.h"

namespace penstock {

struct ReceiverOptions {
  PeerId self = 0;
  PeerId coordinator = 0;
  int32_t replica = 0;
  int32_t num_replicas = 1;
  int32_t trainer = 0;  // its number among the trainers; with roles.ranks_per_replica other than the replica's
  bool counted = true;  // false: another receiver of the same replica stands for it in the job's sums
  int prefetch = 2;
  int hold = 2;
  std::string dump_folder;  // write every delivered batch there; empty: do not
  bool dump_raw = false;    // the uint8 pixels instead of the finished tensor
  // Ranks of several processes: how often this one says that it lives, and after what silence of another trainer's
  // rank, or of the coordinator's, the job ends. 0: silence means nothing, as between threads.
  Nanoseconds heartbeat_ns = 0;
  Nanoseconds silence_ns = 0;
  std::vector<std::string> hosts;  // by rank, for messages; empty: unknown
  // The receiver of `penstock run` or `serve`: takes part in the job's end (see finish_program).
  bool whole_job = false;
  // `penstock serve`: programs come and go; what each opens and begins is compared with the other trainers' programs of
  // that time, and the job ends by end_serving().
  bool serving = false;
  Nanoseconds idle_ns = 0;     // trainer 0's: serving ends after so long without a program, once one came; 0: not
  int32_t local_replicas = 1;  // trainers on this node
  std::string host;
  std::string overrides_json;    // for programs that attach
  const Clock* clock = nullptr;  // of a simulation; null: the real one
  // Trainer 0's receiver: who takes part. Unused elsewhere.
  CoordinatorOptions coordination;
};

// "rank 3, host node1".
inline std::string name_of_rank(const ReceiverOptions& options, PeerId rank) {
  const std::string name = "rank " + std::to_string(rank);
  const auto at = static_cast<size_t>(rank);
  return at < options.hosts.size() ? name + ", host " + options.hosts[at] : name;
}

}  // namespace penstock
