// The passes that a port's clients make over their splits: slots reserved ahead, chunks in, batches out in order.
//
//   Passes passes(options, clock, splits, shares, record, messenger);
//   passes.begin(connection, iterate);      // ClientIterate: a stream at the coordinator, and a pool of slots for it
//   passes.ready(stream_ready);             // the coordinator's answer: now it is told for which steps there is room
//   passes.next(connection, client_next);   // answered with a batch, the end or a failure, whenever that is there
//   passes.take(header, records, chunk);    // a chunk into its slot; then passes.serve(stream): perhaps next() waits
//   passes.release(connection, client_release);   // a slot back from the program
//   passes.stop(connection, client_stop);
//   passes.loader_lost(loader);             // behind shares.loader_lost(): what was on its card may be made again
//
// The steps of a pass, which holds a slot for each one between its cursor and its next_reserve:
//
//     delivered … │ ready or filling … │ to be reserved …
//                 ▲ cursor             ▲ next_reserve <= cursor + prefetch (+ 1 while next() waits)
//
// Invariants:
//   1. A batch is delivered once, in order of steps, and recorded (hash, images) exactly when it is delivered.
//   2. Only slots in state `filling` are written to; a slot that the client holds is never touched.
//   3. At most `prefetch` batches are reserved ahead of the client, and always at least one while a slot is free, so
//      one split's prefetching cannot starve another's.
//   4. Each next() has one answer. After a failure all further ones of the pass have the same.
//   5. A piece of a loader's card that comes with a chunk goes back once: at once, where the chunk is not taken or goes
//   by
//      the host, else with its slot.
//   A pass has one stream at the coordinator at a time. Where images of batches that are not delivered cannot be had
//   any
//      more (they were on a card linked to, and its loader or the link is lost), the pass goes on with another stream
//   from
//      its cursor, and all that was made ahead is made again. Its client knows the first stream's number alone.
//   6. Passes, pools and splits are their client's alone: what another one says of them is as if they were not there.
//      Numbers can be guessed, and a slot that somebody else gives back is written to while its client reads it.
// A pool serves one pass at a time, and the next pass over its split when that is over (slot_pool.h).
// Thread-safety: the port's event loop alone. Ownership: the slots' memory; programs that have it mapped keep it. What
//   the constructor takes must outlive it.
// Failure: begin() throws Error(usage) for a pass that cannot be, take() Error(peer_lost) for a chunk that does not fit
//   its lease (chunk_intake.h). Unusable samples, and a batch that cannot be dumped, are the answer to next().
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
#include "runtime/receiver/card_shares.h"
#include "runtime/receiver/open_splits.h"
#include "runtime/receiver/port_messenger.h"
#include "runtime/receiver/port_record.h"
#include "runtime/receiver/slot_pool.h"
#include "transport/transport.h"

namespace penstock {

class Passes {
 public:
  Passes(const PortOptions& options, const Clock& clock, const OpenSplits& splits, CardShares& shares,
         PortRecord& record, PortMessenger& messenger)
      : options_(options),
        clock_(clock),
        splits_(splits),
        shares_(shares),
        record_(record),
        messenger_(messenger) {}

  void begin(int connection, const ClientIterate& message);
  void next(int connection, const ClientNext& message);
  void release(int connection, const ClientRelease& message);
  void stop(int connection, const ClientStop& message);

  void ready(const StreamReady& message);
  void failed(const StreamFailed& message);
  // False: late, repeated, or of a pass that has ended; its contents are the same wherever it comes from, so nothing is
  // lost by dropping it.
  bool take(const ChunkHeader& header, std::vector<SampleRecord>& records, const ChunkArrived& arrived);
  // Answers the pass's client, where it waits and its batch is ready; of chunks' streams.
  void serve(StreamId lease_stream);

  void loader_lost(PeerId loader);
  void stop_all_of(int connection);
  void split_closed(int32_t split);  // its pools go

  // Of all clients, or of one.
  std::vector<std::pair<std::string, DeliveredRange>> open_ranges(std::optional<int> connection = {}) const;

 private:
  struct Pass {
    StreamId id = 0;
    StreamId lease_stream = 0;  // at the coordinator, which names chunks by it; at first, `id`
    int connection = 0;
    int32_t split_id = 0;
    int32_t pool = 0;
    int64_t epoch = 0;
    int32_t card_reader = 0;    // as OpenStream
    std::vector<int64_t> order; // as ClientIterate, where there is a reader: such a pass may go on by another stream
    PlanShape plan;             // of this pass: the split's, or that of the order which the program gave
    int64_t first_step = 0;
    int64_t cursor = 0;         // step that the client takes next
    int64_t next_reserve = 0;
    int32_t chunk_samples = 0;  // 0 until the coordinator answered
    bool waiting = false;       // the client asked for step `cursor`
    bool warned = false;
    Nanoseconds asked_at = 0;
    Nanoseconds first_asked = 0;
    Nanoseconds last_answered = 0;
    std::map<int64_t, int32_t> slots;  // step -> slot, filling or ready
    std::optional<ClientFailed> failed;
    int64_t substituted = 0;
    StreamHash hash;

    DeliveredRange range() const { return {epoch, first_step, cursor, hash}; }
  };

  Pass* find(int connection, StreamId id);
  StreamId next_stream();
  Pass* of_lease_stream(StreamId lease_stream);
  SlotPool& pool_for(const PortSplit& split);
  void open_stream(Pass& pass, const std::vector<int64_t>& order);
  void close_stream(Pass& pass);
  void make_again(Pass& pass);
  void end(StreamId id);
  void free(Slot& slot) const;
  bool put(const ChunkHeader& header, std::vector<SampleRecord>& records, const ChunkArrived& arrived,
           std::optional<int32_t>& share);
  void reserve(Pass& pass);
  void serve(Pass& pass);
  void answer(Pass& pass, const ClientMessage& message);
  void warn_if_held(Pass& pass, const PortSplit& split, const SlotPool& pool);
  std::optional<ClientFailed> trouble_with(Pass& pass, const PortSplit& split, const Slot& slot) const;
  std::string over_budget(Pass& pass, const PortSplit& split, const Slot& slot) const;
  std::optional<ClientFailed> dump(const Pass& pass, const PortSplit& split, SlotPool& pool, int32_t index);
  void deliver(Pass& pass, const PortSplit& split, SlotPool& pool, int32_t index);
  const std::string& split_name(const Pass& pass) const { return splits_.at(pass.split_id).resolved.name; }

  const PortOptions& options_;
  const Clock& clock_;
  const OpenSplits& splits_;
  CardShares& shares_;
  PortRecord& record_;
  PortMessenger& messenger_;
  std::map<StreamId, Pass> passes_;
  std::map<StreamId, StreamId> by_lease_stream_;  // lease stream -> pass
  std::map<int32_t, SlotPool> pools_;
  std::set<std::tuple<Fingerprint, int64_t, int64_t>> dumped_;  // split, epoch, step
  uint32_t next_stream_ = 1;
  int32_t next_pool_ = 1;
};

}  // namespace penstock
