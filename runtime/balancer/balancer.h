// The balancer: who makes which chunk, and when. Never what is in it: that is the plan's.
//
//   Balancer balancer(options);
//   for (const Action& action : balancer.step(now, event)) carry_out(action);
//
// Purpose: executors pull. Whenever an executor has room for one more lease, it is granted the chunk with the earliest
//   deadline, as long as a batch buffer at the receiver and a chunk buffer at the loader are reserved for it.
// Order of chunks: the batch that a client is blocked on; then by deadline (step minus the cursor of the lease stream's
//   client); within a deadline lease streams whose client waits, then the lease stream served longest ago; within a
//   lease stream's step heavier chunks first (BatchBufferReserved::chunk_bytes, where the owner knows them).
// Order of loaders, where several have room: earliest expected arrival, by what is learned of costs, speeds and links
//   (finish_times.h); a loader on the receiver's node wins unless it is expected to need a quarter longer; then the one
//   served longest ago. A loader that is slow, or far from the receiver, leaves to the others what they will have made
//   before it; for a second at most, in which nothing of the lease stream was granted.
// Purity: `step` depends on nothing but its arguments and earlier calls: no clock, threads, random numbers of its own
//   (policy `random`, for tests, draws from a counter-based generator with a seed), hash order or addresses. A recorded
//   list of (now, event) replays to identical actions; the simulator and the tests drive the same object.
//
// Life of a chunk (one per lease stream, step and number within the batch):
//
//     waiting --grant--> leased --made--> sent --accepted--> done
//      ^  ^                |                |
//      |  +----- failed, lost, expired -----+          every grant has a new generation
//      '--resting <--failed at every loader, or max_attempts times in a row
//
// Invariants:
//   1. A chunk is granted only when its batch buffer is reserved (BatchBufferReserved for its step) and a chunk buffer
//      is free at the loader for that receiver. A receiver without a chunk buffer at the loader may take any free one.
//      A receiver with some may take one more while it holds less than its quota, chunk buffers / live receivers
//      rounded up (live: with an open lease stream), and as long as one free chunk buffer is then left for every
//      receiver of the job that has none there. So a loader with at least as many chunk buffers as the job has
//      receivers always has a chunk buffer for each of them, however many trainers are stopped and whenever they came;
//      a lone receiver uses all chunk buffers but those. Where there are fewer chunk buffers than receivers, at most
//      half of them are kept free for receivers without one.
//   2. At most one lease of a chunk is live; an older generation's result is still welcome (contents are equal), but
//      only the receiver decides what is accepted, and it accepts each chunk once.
//   3. A loader's chunk buffer counts as used from grant until ChunkBufferFreed or the loader's loss; neither revoking
//      nor failing frees a chunk buffer: the loader says ChunkBufferFreed itself for a lease that it dropped or failed.
//      A revoked lease keeps its place in the loader's depth until its chunk buffer is back or its result came.
//   4. A chunk that failed for a reason of the environment is granted to another loader while one is left that has not
//      failed it, until it failed `max_attempts` times in a row; then it rests (100 ms, each time twice as long, 5 s at
//      most), and all loaders may try it again, the same ones too. `retry_for_ns` after its first failure the lease
//      stream fails with the last reason; 0: at once. A loader that fails three times in a row pauses, longer each time,
//      so that it does not swallow the fleet's work.
//   5. One grant in `remake_every`, where there are two loaders, is compared: when its chunk has been accepted, another
//      loader makes it once more (a lease of its own, is_remake()), and the receiver compares. Nothing waits for it; it
//      counts as a hedge.
//   6. Where a loader's made chunk is late to be accepted (see Time), other loaders make what that receiver is still to
//      get, until something of this loader arrives there, or no other one is left that may: the two may not reach each
//      other, though both reach the owner.
//   7. A loader that drains gets no more grants; when it holds nothing any more, LoaderDrained says so, once.
//   8. Where loaders can read some of the samples only (SamplesHeld), a chunk is granted, hedged and compared among those
//      that hold its group. While none of them lives it waits; all_lost_ns after the last loss its lease stream fails, if
//      every living loader has said what it holds.
// Time: everything that depends on time happens at Tick. A lease that is late may go to another loader (the one that has
//   it keeps it until then). Late is a chunk that is not made within three times what 99 of 100 take, 250 ms at least, or,
//   once it is made, not accepted within three times what 99 of 100 take for that, 1 s at least (lease_times.h: as soon as
//   100 of each are known), where the budget for such hedges allows it: 2 % of all grants, 5 % while a loader stands still
//   or was lost within the last minute; and any that is not made, or then not accepted, within lease_timeout. Each time
//   these limits double, up to 32 times. A loader silent for lost_after / 4 stands still: it gets no grants until it
//   speaks, and what it holds may go to others at once; silent for lost_after it is given up, once, and the owner answers
//   with LoaderLost. With no loader left for all_lost, open lease streams fail. How long to wait for the *first* loader of
//   a job is the owner's decision.
// Owner's duties: no event about a lost loader's earlier life once it has joined again, ChunkBufferFreed above all (its
//   chunks at receivers may still be accepted). After FailLeaseStream the lease stream is closed here; its
//   LeaseStreamClosed is then ignored.
// Failure behaviour: events about unknown lease streams, loaders or leases are late messages and ignored; nonsense (a
//   lease stream opened twice, a step outside its range, no chunk buffers) is Error(usage) and changes nothing.
// Cost: O(log n) an event plus the loaders or receivers that quotas make it skip (at most a loader's chunk buffers, or
//   the loaders where the receiver holds chunk buffers). A lost loader or a receiver's last LeaseStreamClosed looks at
//   all lease streams with waiting chunks. Where chunks have groups, waiting ones that nobody with room holds are passed
//   over, too: as many as batch buffers have.
// Thread-safety: none; one owner. Ownership: events and actions are values, and it keeps nothing of the caller's.
// Parts: balancer_impl.h puts them together. lease_stream_registry.h knows the chunks, and which is next;
//   loader_registry.h knows the loaders, and which is next; finish_times.h says when a chunk would arrive, by cost_model.h
//   and link_costs.h; lease_times.h says which leases are late. event_log.h is the log. lease_rules.h is for the owner, who
//   chooses depths and sizes by it.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <variant>
#include <vector>

namespace penstock {

using LoaderId = int32_t;        // rank of the loader in the job
using ReceiverId = int32_t;      // trainer number, 0..T-1
using LeaseStreamId = uint64_t;  // the leases of one iteration, or of the rest of one; unique in the job

struct BalancerOptions {
  enum class Policy : uint8_t { deadline = 0, random = 1 };
  Policy policy = Policy::deadline;
  uint64_t random_seed = 0;
  int64_t lease_timeout_ns = 30'000'000'000;
  int64_t lost_after_ns = 10'000'000'000;  // silence of a loader after which it is given up
  int64_t all_lost_ns = 2'000'000'000;     // without any loader, after which open lease streams fail
  int max_attempts = 3;
  int64_t retry_for_ns = 0;  // how long a chunk may fail before its lease stream does
  int64_t remake_every = 0;  // one grant in so many is made twice and compared; 0: none
  int32_t receivers = 0;     // trainers of the job; 0: unknown, then one more than seen is counted on
  bool embedded = false;     // the only loader lives in the program that it feeds, and messages know no ranks
};

// For messages: "rank 3 (loader)", or "the embedded loader".
std::string loader_name(LoaderId loader, bool embedded, const std::vector<std::string>& hosts = {});  // by LoaderId
std::string seconds_text(int64_t ns);                                                                 // "2.5 s"

// Names one grant of one chunk.
struct LeaseKey {
  LeaseStreamId lease_stream = 0;
  int64_t step = 0;
  int32_t chunk = 0;
  uint32_t generation = 0;

  friend auto operator<=>(const LeaseKey&, const LeaseKey&) = default;
};

// Leases of chunks that are made a second time, to be compared, have generations of their own.
inline constexpr uint32_t kRemakeBit = uint32_t{1} << 31;
inline bool is_remake(const LeaseKey& lease) {
  return (lease.generation & kRemakeBit) != 0;
}

// ---- events: what happened -------------------------------------------------------------------------------------
struct LoaderJoined {
  LoaderId loader = 0;
  int32_t depth = 2;           // leases it wants at a time (two for each executor hide the round trip)
  int32_t chunk_buffers = 0;   // chunk buffers it owns
  int32_t node = 0;            // for locality
  int32_t executor_class = 0;  // 0: CPU alone, 1: GPUs beside it; costs are learned for each class
  int32_t threads = 0;         // that make the samples of its chunks; 0: as many as it has executors
};
// A heartbeat; what a loader reports of its work counts, too.
struct LoaderAlive {
  LoaderId loader = 0;
};
struct LoaderLost {
  LoaderId loader = 0;
  std::string reason;
};
// It wants to leave in good order.
struct LoaderDraining {
  LoaderId loader = 0;
};
// It wants so many leases besides its depth, until it asks for another number.
struct LoaderAhead {
  LoaderId loader = 0;
  int32_t leases = 0;
};
struct LeaseStreamOpened {
  LeaseStreamId lease_stream = 0;
  ReceiverId receiver = 0;
  int32_t node = 0;
  int64_t first_step = 0;
  int64_t steps = 0;  // end of the range: steps first_step..steps-1 will be asked for
  int32_t chunks_per_step = 1;
  int32_t chunks_last_step = 1;  // the last batch may be shorter
  int64_t payload_bytes = 0;     // of a whole chunk, as it travels
};
// The receiver has room for this batch.
struct BatchBufferReserved {
  LeaseStreamId lease_stream = 0;
  int64_t step = 0;
  std::vector<int64_t> chunk_bytes = {};  // encoded bytes of each chunk's samples; empty: unknown
  // The group of each chunk that there is: a loader that holds it can read the chunk. Empty: every loader can read all.
  std::vector<int64_t> groups = {};
};
// Groups of a lease stream's samples that the loader has on its disks: all of them, in place of what it said before.
struct SamplesHeld {
  LeaseStreamId lease_stream = 0;
  LoaderId loader = 0;
  std::vector<int64_t> groups = {};
};
// The client takes step `cursor` next.
struct CursorMoved {
  LeaseStreamId lease_stream = 0;
  int64_t cursor = 0;
  bool waiting = false;
};
// It is finished, or the client broke off.
struct LeaseStreamClosed {
  LeaseStreamId lease_stream = 0;
};
struct ChunkProduced {
  LoaderId loader = 0;
  LeaseKey lease;
  int64_t busy_ns = 0;
  int64_t bytes = 0;
  int64_t pixels = 0;
  int64_t held_ns = -1;  // from the lease's arrival at the loader until the chunk was sent; -1: unknown
};
// By the environment's fault.
struct ChunkFailed {
  LoaderId loader = 0;
  LeaseKey lease;
  std::string reason;
};
// The receiver has it, from any generation.
struct ChunkAccepted {
  LeaseKey lease;
};
// A published chunk buffer came back.
struct ChunkBufferFreed {
  LoaderId loader = 0;
  ReceiverId receiver = 0;
};
// Time passes: look for expired leases and silent loaders.
struct Tick {};

using Event = std::variant<LoaderJoined, LoaderAlive, LoaderLost, LoaderDraining, LoaderAhead, LeaseStreamOpened,
                           BatchBufferReserved, SamplesHeld, CursorMoved, LeaseStreamClosed, ChunkProduced, ChunkFailed,
                           ChunkAccepted, ChunkBufferFreed, Tick>;

// ---- actions: what to do ---------------------------------------------------------------------------------------
struct Grant {
  LoaderId loader = 0;
  ReceiverId receiver = 0;
  LeaseKey lease;
  int64_t deadline = 0;
  bool compared = false;  // the receiver keeps its hashes for the second one, or is_remake() and this is it
};
// The loader drops it where it has not begun; its chunk buffer comes by ChunkBufferFreed.
struct Revoke {
  LoaderId loader = 0;
  LeaseKey lease;
};
// Silent for too long: it counts as lost.
struct GiveUpLoader {
  LoaderId loader = 0;
  std::string reason;
};
// It holds nothing any more, and may go.
struct LoaderDrained {
  LoaderId loader = 0;
};
// No loader can make a chunk, or none is left.
struct FailLeaseStream {
  LeaseStreamId lease_stream = 0;
  std::string reason;
  LeaseKey unreadable = {};  // the chunk that nobody can read; of lease stream 0: that is not why
};

using Action = std::variant<Grant, Revoke, GiveUpLoader, LoaderDrained, FailLeaseStream>;

class Balancer {
 public:
  explicit Balancer(const BalancerOptions& options);
  ~Balancer();
  Balancer(Balancer&&) noexcept;
  Balancer& operator=(Balancer&&) noexcept;

  std::vector<Action> step(int64_t now_ns, const Event& event);

  // Does some loader seem not to reach some receiver, by invariant 6?
  bool any_apart() const;

  // For reports: learned cost and speed.
  struct LoaderFigures {
    int64_t chunks = 0;
    int64_t busy_ns = 0;
    int64_t regranted = 0;  // leases that it lost to others by expiry, failure or its loss
    int64_t hedged = 0;     // of those, late by what leases usually take: work that may be done twice
    double speed = 1;       // of one of its threads, relative to its class's mean cost; greater is faster
    bool slow = false;      // less than a third of its class's median speed
  };
  std::map<LoaderId, LoaderFigures> figures() const;

  // Learned cost of a chunk: fixed + per_byte * bytes + per_pixel * pixels, in nanoseconds of threads, all of
  // them added, in an average loader of the class.
  struct CostFigures {
    int64_t samples = 0;
    double mean_ns = 0;
    double fixed_ns = 0;
    double ns_per_byte = 0;
    double ns_per_pixel = 0;
  };
  CostFigures cost(int32_t executor_class = 0) const;

  // What travelled from node to node, and what that costs.
  struct LinkFigures {
    int32_t from = 0;
    int32_t to = 0;
    int64_t chunks = 0;
    int64_t bytes = 0;
    double bytes_per_s = 0;  // 0: unknown
    double latency_ns = 0;
    double peak_bytes_per_s = 0;  // the best that was seen; 0: unknown
  };
  std::vector<LinkFigures> links() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// The log of a balancer's events and actions, and its replay: event_log.h describes the format.
std::string to_json(const Event& event);
std::string to_json(const Action& action);
Event event_from_json(const std::string& json);
struct Replayed {
  int64_t events = 0;
  std::string difference;  // the first; empty when there is none
  bool cut_off = false;    // it ends in the middle of a line, or of what one event decided
};
Replayed replay_log(const std::string& log_text);

}  // namespace penstock
