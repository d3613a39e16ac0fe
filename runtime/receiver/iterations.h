// The iterations that a receiver's clients make over their splits: batch buffers reserved ahead, chunks in, batches out
// in order.
//
//   Iterations iterations(options, clock, splits, exports, statistics, messenger);
//   // ClientIterate: a lease stream at the coordinator, and a pool of batch buffers for it
//   iterations.begin(connection, iterate);
//   iterations.ready(lease_stream_ready);   // the coordinator's answer: now it is told for which steps there is room
//   iterations.next(connection, client_next);  // answered with a batch, the end or a failure, whenever that is there
//   // a chunk into its batch buffer; then iterations.serve(iteration): perhaps next() waits
//   iterations.take(header, records, chunk);
//   iterations.release(connection, client_release);  // a batch buffer back from the program
//   iterations.stop(connection, client_stop);
//   iterations.loader_lost(loader);         // behind exports.loader_lost(): what was on its GPU may be made again
//
// The steps of an iteration, which holds a batch buffer for each one between its cursor and its next_reserve:
//
//     delivered … │ ready or filling … │ to be reserved …
//                 ▲ cursor             ▲ next_reserve <= cursor + prefetch (+ 1 while next() waits)
//
// Invariants:
//   1. A batch is delivered once, in order of steps, and recorded (hash, images) exactly when it is delivered.
//   2. Only batch buffers in state `filling` are written to; a batch buffer that the client holds is never touched.
//   3. At most `prefetch` batches are reserved ahead of the client, and always at least one while a batch buffer is
//      free, so one split's prefetching cannot starve another's.
//   4. Each next() has one answer. After a failure all further ones of the iteration have the same.
//   5. A buffer range of a loader's GPU that comes with a chunk goes back once: at once, where the chunk is not taken
//      or goes by the host, else with its batch buffer.
//   An iteration has one lease stream at the coordinator at a time. Where images of batches that are not delivered
//      cannot be had any more (they were on a GPU linked to, and its loader or the link is lost), the iteration goes on
//      with another lease stream from its cursor, and all that was made ahead is made again. Its client knows the first
//      lease stream's number alone.
//   6. Iterations, pools and splits are their client's alone: what another one says of them is as if they were not
//      there. Numbers can be guessed, and a batch buffer that somebody else gives back is written to while its client
//      reads it.
// A pool serves one iteration at a time, and the next iteration over its split when that is over (batch_buffer_pool.h).
// Thread-safety: the receiver's event loop alone. Ownership: the batch buffers' memory; programs that have it mapped
//   keep it. What the constructor takes must outlive it.
// Failure: begin() throws Error(usage) for an iteration that cannot be, take() Error(peer_lost) for a chunk that does
//   not fit its lease (chunk_intake.h). Unusable samples, and a batch that cannot be dumped, are the answer to next().
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/protocol/chunk.h"
#include "runtime/protocol/messages.h"
#include "runtime/receiver/batch_buffer_pool.h"
#include "runtime/receiver/chunk_intake.h"
#include "runtime/receiver/export_registry.h"
#include "runtime/receiver/open_splits.h"
#include "runtime/receiver/receiver_messenger.h"
#include "runtime/receiver/receiver_statistics.h"
#include "transport/transport.h"

namespace penstock {

class Iterations {
 public:
  Iterations(const ReceiverOptions& options, const Clock& clock, const OpenSplits& splits, ExportRegistry& exports,
             ReceiverStatistics& statistics, ReceiverMessenger& messenger)
      : options_(options),
        clock_(clock),
        splits_(splits),
        exports_(exports),
        statistics_(statistics),
        messenger_(messenger) {}

  void begin(int connection, const ClientIterate& message);
  void next(int connection, const ClientNext& message);
  void release(int connection, const ClientRelease& message);
  void stop(int connection, const ClientStop& message);

  void ready(const LeaseStreamReady& message);
  void failed(const LeaseStreamFailed& message);
  // False: late, repeated, or of an iteration that has ended; its contents are the same wherever it comes from, so
  // nothing is lost by dropping it.
  bool take(const ChunkHeader& header, std::vector<SampleRecord>& records, const ChunkArrived& arrived);
  // A chunk that was made a second time: says what differs, and who made it; empty where nothing does, or the first one is
  // not known any more.
  std::string compare(const ChunkHeader& header, const std::vector<SampleRecord>& records, const ChunkArrived& arrived);
  // Answers the iteration's client, where it waits and its batch is ready; of chunks' lease streams.
  void serve(LeaseStreamId lease_stream);

  void loader_lost(PeerId loader);
  void stop_all_of(int connection);
  // Why a client gives up that got no batch for as long as it waits, in one of its iterations or (0) any; empty: it waits
  // for none, or not for so long.
  std::string waited_in_vain(int connection, LeaseStreamId only = 0) const;
  void split_closed(int32_t split);  // its pools go

  // The open ranges of all clients, or of one.
  std::vector<std::pair<std::string, DeliveredRange>> open_ranges(std::optional<int> connection = {}) const;

 private:
  struct Iteration {
    LeaseStreamId id = 0;
    LeaseStreamId lease_stream = 0;  // at the coordinator, which names chunks by it; at first, `id`
    int connection = 0;
    int32_t split_id = 0;
    int32_t pool = 0;
    int64_t epoch = 0;
    int32_t gpu_reader = 0;  // as OpenLeaseStream
    // as ClientIterate, where there is a reader: such an iteration may go on by another lease stream
    std::vector<int64_t> order;
    PlanShape plan;  // of this iteration: the split's, or that of the order which the program gave
    int64_t first_step = 0;
    int64_t cursor = 0;  // step that the client takes next
    int64_t next_reserve = 0;
    int32_t chunk_samples = 0;  // 0 until the coordinator answered
    bool by_holder = false;     // as it answered
    bool waiting = false;       // the client asked for step `cursor`
    bool came_late = false;     // what it asked for last, when it had given up
    bool warned = false;
    Nanoseconds asked_at = 0;
    Nanoseconds first_asked = 0;
    Nanoseconds last_answered = 0;
    std::map<int64_t, int32_t> batch_buffers;  // step -> batch buffer, filling or ready
    std::optional<ClientFailed> failed;
    int64_t substituted = 0;
    StreamHash hash;
    struct MadeFirst {
      PeerId sender = 0;
      ChunkHashes hashes;
    };
    std::map<std::pair<int64_t, int32_t>, MadeFirst> to_compare;  // by step and chunk, until the second one came

    DeliveredRange range() const { return {epoch, first_step, cursor, hash}; }
  };

  Iteration* find(int connection, LeaseStreamId id);
  LeaseStreamId next_lease_stream();
  Iteration* of_lease_stream(LeaseStreamId lease_stream);
  BatchBufferPool& pool_for(const ReceiverSplit& split);
  void open_lease_stream(Iteration& iteration, const std::vector<int64_t>& order);
  void close_lease_stream(Iteration& iteration);
  void make_again(Iteration& iteration);
  void end(LeaseStreamId id);
  void free(BatchBuffer& batch_buffer) const;
  bool put(const ChunkHeader& header, std::vector<SampleRecord>& records, const ChunkArrived& arrived,
           std::optional<int32_t>& exported);
  ChunkExpectation expected(const Iteration& iteration, const ChunkArrived& arrived) const;
  void reserve(Iteration& iteration);
  void serve(Iteration& iteration);
  void answer(Iteration& iteration, const ClientMessage& message);
  bool has_waited(const Iteration& iteration, double share) const;
  void warn_if_held(Iteration& iteration, const ReceiverSplit& split, const BatchBufferPool& pool);
  std::optional<ClientFailed> trouble_with(Iteration& iteration, const ReceiverSplit& split,
                                           const BatchBuffer& batch_buffer) const;
  std::string over_budget(Iteration& iteration, const ReceiverSplit& split, const BatchBuffer& batch_buffer) const;
  std::optional<ClientFailed> dump(const Iteration& iteration, const ReceiverSplit& split, BatchBufferPool& pool,
                                   int32_t index);
  void deliver(Iteration& iteration, const ReceiverSplit& split, BatchBufferPool& pool, int32_t index);
  const std::string& split_name(const Iteration& iteration) const {
    return splits_.at(iteration.split_id).resolved.name;
  }

  const ReceiverOptions& options_;
  const Clock& clock_;
  const OpenSplits& splits_;
  ExportRegistry& exports_;
  ReceiverStatistics& statistics_;
  ReceiverMessenger& messenger_;
  std::map<LeaseStreamId, Iteration> iterations_;
  std::map<LeaseStreamId, LeaseStreamId> by_lease_stream_;  // lease stream -> iteration
  std::map<int32_t, BatchBufferPool> pools_;
  std::set<std::tuple<Fingerprint, int64_t, int64_t>> dumped_;  // split, epoch, step
  uint32_t next_lease_stream_ = 1;
  int32_t next_pool_ = 1;
};

}  // namespace penstock
