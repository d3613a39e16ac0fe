// A port: the receiving end of one trainer. Takes chunks from loaders, puts batches together in slots, hands them to
// the training program (the client) in order.
//
//   Port port(options, std::move(endpoint));
//   port.listen("penstock/1000/ab12/p0", token);   // or port.adopt(socket) for a program in the same process
//   port.run();                                    // one thread; until stop() or the job ends
//
// One event loop: endpoint, client sockets, timers, and descriptors that its owner watches (signals, helper). Trainer
// 0's port also runs the Coordinator; what the two say to each other goes through the same queue as everybody's
// messages, so neither calls into the other.
//
// Taking a chunk: the lease is checked (a stream of ours, a step with a slot, a chunk not yet taken; anything else is
// late or a repetition and is dropped), then copied into the slot. The copy is the finishing pass, and on the way each
// sample is hashed from the bytes that arrived. Then the cell is released, which is all a loader waits for.
//
// Invariants:
//   1. A batch is delivered once, in order of steps, and counted (hash, images) exactly when it is delivered.
//   2. The port writes only to slots in state `filling`; a slot the client holds is never touched.
//   3. A split is fed to one living process at a time: a second one that opens it is refused, by name of the first.
//   4. At most `prefetch` batches are reserved ahead of the client, and always at least one while a slot is free, so
//      one split's prefetching cannot starve another's.
// Failure: trouble of one stream is told to its client; losing the coordinator ends run() with Error(peer_lost). What
//   else a port cannot live with ends the job by name where it is `whole_job`'s, and otherwise ends run() with the
//   Error; its owner then calls disconnect_clients(), once it can tell them why.
// Thread-safety: adopt() and stop() from any thread; the rest before run(), after it, or from its callbacks.
// Ownership: the endpoint and the slots' memory; programs that have it mapped keep it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/config/job.h"
#include "runtime/protocol/messages.h"
#include "runtime/trainer/coordinator.h"
#include "transport/transport.h"

namespace penstock {

struct PortOptions {
  PeerId self = 0;
  PeerId coordinator = 0;
  int32_t replica = 0;
  int32_t num_replicas = 1;
  int32_t trainer = 0;       // its number among the trainers; with roles.ranks_per_replica other than the replica's
  bool counted = true;       // false: another port of the same replica stands for it in the job's sums
  int prefetch = 2;
  int hold = 2;
  std::string dump_folder;   // write every delivered batch there; empty: do not
  bool dump_raw = false;     // the uint8 pixels instead of the finished tensor
  // Ranks of several processes: how often this one says that it lives, and after what silence of another trainer's rank,
  // or of the coordinator's, the job ends. 0: silence means nothing, as between threads.
  Nanoseconds heartbeat_ns = 0;
  Nanoseconds silence_ns = 0;
  std::vector<std::string> hosts;  // by rank, for messages; empty: not said
  bool whole_job = false;    // the port of `penstock run` or `serve`: takes part in the job's end (see finish_program)
  // `penstock serve`: programs come and go; what each opens and begins is compared with the other trainers' programs of
  // that time, and the job ends by end_serving().
  bool serving = false;
  Nanoseconds idle_ns = 0;      // trainer 0's: serving ends after so long without a program, once one came; 0: not
  int32_t local_replicas = 1;   // trainers on this node
  std::string host;
  std::string overrides_json;   // for programs that attach
  // Trainer 0's port: who takes part. Unused elsewhere.
  CoordinatorOptions coordination;
};

// What went through this port so far, and where the split delivered last stands.
struct PortFigures {
  int64_t images = 0;
  int64_t batches = 0;
  double wait_s = 0;       // from the program's next() to the answer
  double elapsed_s = 0;    // first next() to last answer
  std::string split;
  int64_t epoch = 0;
  int64_t step = 0;        // batches of the epoch that are delivered
  int64_t steps = 0;       // of an epoch
};

class Port {
 public:
  Port(const PortOptions& options, std::unique_ptr<Endpoint> endpoint);
  ~Port();

  void listen(const std::string& name, const std::string& token);
  void adopt(UniqueFd client_socket);   // before run(), or from another thread while it runs

  void run();
  void stop() noexcept;                 // from any thread
  // After run(): clients, and those that come later, see a hang-up at once instead of waiting for nobody.
  void disconnect_clients();

  // run() calls `ready` in its loop whenever `fd` is readable. Before run() only.
  void watch(int fd, std::function<void()> ready);
  // Called about every `every_ns` from the loop, with a snapshot: for progress lines.
  void every(Nanoseconds every_ns, std::function<void(const PortFigures&)> call);

  // Called from the loop with what people should know: "the program holds all 5 batches ...". The client hears it too.
  void on_notice(std::function<void(const std::string&)> call);

  // whole_job: the program of this trainer ended. From the loop's own callbacks only.
  void finish_program(bool good, const std::string& problem, int exit_code);
  // serving: ends it for every rank, in good order; programs see a hang-up. From the loop's own callbacks only.
  void end_serving(const std::string& reason);
  // whole_job: called once when the job ends for everybody: stop the program if it still runs.
  void on_goodbye(std::function<void(const Goodbye&)> call);
  const Goodbye& goodbye() const;
  // Trainer 0's, after run(): the reports of all ranks as JSON texts, ports first.
  std::vector<std::string> reports() const;
  std::string report_json() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace penstock
