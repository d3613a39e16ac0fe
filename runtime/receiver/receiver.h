// A receiver: the receiving end of one trainer. Takes chunks from loaders, puts batches together in batch buffers,
// hands them to the training program (the client) in order.
//
//   const std::unique_ptr<Receiver> receiver = make_receiver(options, std::move(endpoint));
//   receiver->listen("penstock/1000/ab12/p0", token);  // or adopt(socket) for a program in the same process
//   receiver->run();                                // one thread; until stop() or the job ends
//
// One event loop: endpoint, client sockets, timers, and descriptors that its owner watches (signals, helper). Trainer
// 0's receiver also runs the Coordinator; what the two say to each other goes through the same queue as everybody's
// messages, so neither calls into the other.
//
// Its parts, each with its invariants in a header of its own; what is here is the loop, and who is handed which
// message:
//
//   programs ── client_connections.h ──┬── open_splits.h   what they opened, and for whom
//                                      └── iterations.h    batch buffers reserved ahead, batches out in order
//   loaders ─── endpoint ── chunk_intake.h ───^            a chunk's check, hash and copy into its batch buffer
//   other ranks ── endpoint ── coordinator.h (trainer 0's), heartbeats.h, receiver_shutdown.h
//   receiver_statistics.h                                  what went through, for reports and progress
//   receiver_messenger.h                                   what all of these send goes out by this
//
// Parts of these: receiver_split.h (a split, as it is known here), batch_buffer_pool.h (batches in memory),
// batch_buffer_dump.h (on disk), export_registry.h (loaders' GPU memory), delivery_ledger.h (what was delivered, split by
// split), job_shutdown.h (how the job ends, at trainer 0), receiver_options.h.
//
// A chunk buffer is released as soon as its chunk is copied, or dropped, which is all a loader waits for.
//
// Failure: trouble of one lease stream is reported to its client; losing the coordinator ends run() with
//   Error(peer_lost). What else a receiver cannot live with ends the job by name where it is `whole_job`'s, and
//   otherwise ends run() with the Error; its owner then calls disconnect_clients(), once it can tell them why.
// Thread-safety: adopt() and stop() from any thread; the rest before run(), after it, or from its callbacks.
// Ownership: the endpoint and the batch buffers' memory; programs that have it mapped keep it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/protocol/messages.h"
#include "runtime/receiver/receiver_options.h"
#include "runtime/receiver/receiver_statistics.h"
#include "transport/transport.h"

namespace penstock {

class Receiver {
 public:
  virtual ~Receiver() = default;

  virtual void listen(const std::string& name, const std::string& token) = 0;
  virtual void adopt(UniqueFd client_socket) = 0;  // before run(), or from another thread while it runs

  virtual void run() = 0;
  // One turn of run()'s loop, without waiting; true: something moved. For who has an event loop already: begin() comes
  // first, and errors are the caller's.
  virtual void begin() = 0;
  virtual bool turn() = 0;
  virtual bool ended() const noexcept = 0;  // the job has, for everybody; goodbye() says how
  virtual void stop() noexcept = 0;         // from any thread
  // After run(): clients, and those that come later, see a hang-up at once instead of waiting for nobody.
  virtual void disconnect_clients() = 0;

  // run() calls `ready` in its loop whenever `fd` is readable. Before run() only.
  virtual void watch(int fd, std::function<void()> ready) = 0;
  // Called about every `every_ns` from the loop, with a snapshot: for progress lines, and to look after the program.
  virtual void every(Nanoseconds every_ns, std::function<void(const ReceiverFigures&)> call) = 0;

  // Called from the loop with what people should know: "the program holds all 5 batches ...". The client receives it
  // too.
  virtual void on_notice(std::function<void(const std::string&)> call) = 0;

  // whole_job: the program of this trainer ended. From the loop's own callbacks only.
  virtual void finish_program(bool good, const std::string& problem, int exit_code) = 0;
  // The latest that a program was told of what went wrong, without the remedy; empty: nothing. From the loop's own
  // callbacks only.
  virtual const std::string& reported_problem() const noexcept = 0;
  // whole_job: the job ends by this, whatever this trainer's program has done. From the loop's own callbacks only.
  virtual void fail(const std::string& problem, int exit_code) = 0;
  // serving: ends it for every rank, in good order; programs see a hang-up. From the loop's own callbacks only.
  virtual void end_serving(const std::string& reason) = 0;
  // whole_job: called once when the job ends for everybody: stop the program if it still runs.
  virtual void on_goodbye(std::function<void(const Goodbye&)> call) = 0;
  virtual const Goodbye& goodbye() const = 0;
  // Trainer 0's, after run(): the reports of all ranks as JSON texts, receivers first.
  virtual std::vector<std::string> reports() const = 0;
  virtual std::string report_json() const = 0;
};

std::unique_ptr<Receiver> make_receiver(const ReceiverOptions& options, std::unique_ptr<Endpoint> endpoint);

}  // namespace penstock
