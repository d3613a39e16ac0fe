// The balancer: who makes which chunk, and when. Never what is in it: that is the plan's.
//
//   Balancer balancer(options);
//   for (const Action& action : balancer.step(now, event)) carry_out(action);
//
// Purpose: executors pull. Whenever an executor has room for one more lease, it is granted the chunk with the earliest
//   deadline, as long as a slot at the port and a cell at the loader are reserved for it.
// Order of chunks: the batch that a client is blocked on; then by deadline (step minus the cursor of the stream's
//   client); within a deadline streams whose client waits, then the stream served longest ago; within a stream's step
//   heavier chunks first (SlotReserved::weights, where the owner knows them).
// Order of loaders, where several have room: earliest expected finish by learned speed; a loader on the port's node
//   wins unless it is expected to need a quarter longer; then the one served longest ago.
// Purity: `step` depends on nothing but its arguments and earlier calls: no clock, threads, random numbers of its own
//   (policy `random`, for tests, draws from a counter-based generator with a seed), hash order or addresses. A recorded
//   list of (now, event) replays to identical actions; the simulator and the tests drive the same object.
//
// Life of a chunk (one per stream, step and number within the batch):
//
//     waiting --grant--> leased --made--> sent --accepted--> done
//        ^                 |                |
//        +----- failed, lost, expired ------+          every grant has a new generation
//
// Invariants:
//   1. A chunk is granted only when its slot is reserved (SlotReserved for its step) and a cell is free at the loader
//      for that port. A port without a cell at the loader may take any free one. A port with some may take one more
//      while it holds less than its quota, cells / live ports rounded up (live: with an open stream), and as long as
//      one free cell is then left for every port of the job that has none there. So a loader with at least as many
//      cells as the job has ports always has a cell for each of them, however many trainers are stopped and whenever
//      they came; a lone port uses all cells but those. Where there are fewer cells than ports, at most half of them
//      are kept free for ports without one.
//   2. At most one lease of a chunk is live; an older generation's result is still welcome (contents are equal), but
//      only the port decides what is accepted, and it accepts each chunk once.
//   3. A loader's cell counts as used from grant until CellFreed or the loader's loss; neither revoking nor failing
//      frees a cell: the loader says CellFreed itself for a lease that it dropped or failed. A revoked lease keeps its
//      place in the loader's depth until its cell is back or its result came.
//   4. A chunk that failed for a reason of the environment is granted to another loader while one is left that has not
//      failed it, until it failed `max_attempts` times; then the stream fails with the last reason. A loader that fails
//      three times in a row pauses, longer each time, so that it does not swallow the fleet's work.
// Time: everything that depends on time happens at Tick. A lease not accepted in time may go to another loader (the
//   old holder keeps it until then), each time with twice the patience, up to 32 times. A loader silent for
//   lost_after / 4 gets no grants until it speaks; silent for lost_after it is given up, once, and the owner answers
//   with LoaderLost. With no loader left for lost_after, open streams fail. How long to wait for the *first* loader
//   of a job is the owner's decision.
// Owner's duties: no event about a lost loader's earlier life once it has joined again, CellFreed above all (its chunks
//   at ports may still be accepted). After FailStream the stream is closed here; its StreamClosed is then ignored.
// Failure behaviour: events about unknown streams, loaders or leases are late messages and ignored; nonsense (a stream
//   opened twice, a step outside its range, no cells) is Error(usage) and changes nothing.
// Cost: O(log n) an event plus the loaders or ports that quotas make it skip (at most a loader's cells, or the loaders
//   where the port holds cells). A lost loader or a port's last StreamClosed looks at all streams with waiting chunks.
// Thread-safety: none; one owner.
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

using LoaderId = int32_t;   // rank of the loader in the job
using PortId = int32_t;     // trainer number, 0..T-1
using StreamId = uint64_t;  // one iteration of one split at one port; unique in the job

struct BalancerOptions {
  enum class Policy : uint8_t { deadline = 0, random = 1 };
  Policy policy = Policy::deadline;
  uint64_t random_seed = 0;
  int64_t lease_timeout_ns = 30'000'000'000;
  int64_t lost_after_ns = 10'000'000'000;  // silence of a loader after which it is given up
  int max_attempts = 3;
  int32_t ports = 0;  // trainers of the job; 0: unknown, then one more than seen is counted on
  bool embedded = false;  // the only loader lives in the program that it feeds, and messages know no ranks
};

// For messages: "rank 3 (loader)", or "the embedded loader".
std::string loader_name(LoaderId loader, bool embedded);

// Names one grant of one chunk.
struct LeaseKey {
  StreamId stream = 0;
  int64_t step = 0;
  int32_t chunk = 0;
  uint32_t generation = 0;

  friend auto operator<=>(const LeaseKey&, const LeaseKey&) = default;
};

// ---- events: what happened -------------------------------------------------------------------------------------
struct LoaderJoined {
  LoaderId loader = 0;
  int32_t depth = 2;       // leases it wants at a time (two for each executor hide the round trip)
  int32_t cells = 0;       // chunk cells it owns
  int32_t node = 0;        // for locality
};
struct LoaderAlive { LoaderId loader = 0; };                     // heartbeat; every other event of it counts too
struct LoaderLost { LoaderId loader = 0; std::string reason; };
struct LoaderAhead { LoaderId loader = 0; int32_t leases = 0; };  // wanted besides its depth, until it says otherwise
struct StreamOpened {
  StreamId stream = 0;
  PortId port = 0;
  int32_t node = 0;
  int64_t first_step = 0;
  int64_t steps = 0;                   // end of the range: steps first_step..steps-1 will be asked for
  int32_t chunks_per_step = 1;
  int32_t chunks_last_step = 1;        // the last batch may be shorter
};
struct SlotReserved {                  // the port has room for this batch
  StreamId stream = 0;
  int64_t step = 0;
  std::vector<int64_t> weights = {};   // expected cost of each chunk in any one unit; empty: unknown
};
struct CursorMoved { StreamId stream = 0; int64_t cursor = 0; bool waiting = false; };  // next step the client takes
struct StreamClosed { StreamId stream = 0; };                    // finished, or the client broke off
struct ChunkMade { LoaderId loader = 0; LeaseKey lease; int64_t busy_ns = 0; int64_t bytes = 0; int64_t pixels = 0; };
struct ChunkFailed { LoaderId loader = 0; LeaseKey lease; std::string reason; };  // the environment's fault
struct ChunkAccepted { LeaseKey lease; };                        // the port has it, from any generation
struct CellFreed { LoaderId loader = 0; PortId port = 0; };      // a published cell came back
struct Tick {};                                                  // time passes: look for expired leases, silent loaders

using Event = std::variant<LoaderJoined, LoaderAlive, LoaderLost, LoaderAhead, StreamOpened, SlotReserved, CursorMoved,
                           StreamClosed, ChunkMade, ChunkFailed, ChunkAccepted, CellFreed, Tick>;

// ---- actions: what to do ---------------------------------------------------------------------------------------
struct Grant { LoaderId loader = 0; PortId port = 0; LeaseKey lease; int64_t deadline = 0; };
struct Revoke { LoaderId loader = 0; LeaseKey lease; };          // drop it if not begun; its cell comes by CellFreed
struct GiveUpLoader { LoaderId loader = 0; std::string reason; };   // silent for too long: treat as lost
struct FailStream { StreamId stream = 0; std::string reason; };  // no loader can make a chunk, or none is left

using Action = std::variant<Grant, Revoke, GiveUpLoader, FailStream>;

class Balancer {
 public:
  explicit Balancer(const BalancerOptions& options);
  ~Balancer();
  Balancer(Balancer&&) noexcept;
  Balancer& operator=(Balancer&&) noexcept;

  std::vector<Action> step(int64_t now_ns, const Event& event);

  // For reports: learned cost and speed.
  struct LoaderFigures {
    int64_t chunks = 0;
    int64_t busy_ns = 0;
    int64_t regranted = 0;  // leases that it lost to others by expiry, failure or its loss
    double speed = 1;       // of one of its executors, relative to the fleet's mean cost; greater is faster
  };
  std::map<LoaderId, LoaderFigures> figures() const;

  // Learned cost of a chunk: fixed + per_byte * bytes + per_pixel * pixels, in nanoseconds of an average executor.
  struct CostFigures {
    int64_t samples = 0;
    double fixed_ns = 0;
    double ns_per_byte = 0;
    double ns_per_pixel = 0;
  };
  CostFigures cost() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// The log of a balancer's events and actions, and its replay: event_log.h describes the format.
std::string to_json(const Event& event);
std::string to_json(const Action& action);
Event event_from_json(const std::string& json);
std::string replay_log(const std::string& log_text);  // the first difference; empty when there is none

}  // namespace penstock
