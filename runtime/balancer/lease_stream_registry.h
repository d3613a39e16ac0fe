// The balancer's registry of lease streams: which chunks wait, which are out, which are done; and which chunk is next.
//
//   LeaseStreamRegistry registry;
//   for (const auto& key : registry.ready()) ...  // lease streams with waiting chunks, most urgent first
//   stream.waiting.begin()                         // the lease stream's most urgent chunk
//
// Purpose: the order of work (balancer.h) stands here and nowhere else: a set of waiting chunks for each lease stream,
//   and one set of lease streams, keyed by their first chunk. A cursor that moves re-keys one lease stream, never its
//   chunks.
// Memory: a step exists from BatchBufferReserved until its last chunk is accepted, so the registry is as large as the
//   batch buffers are.
// Ownership: pointers stay valid until the step is finished or the lease stream closed. Thread-safety: none; a part of
// Balancer.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "runtime/balancer/balancer.h"

namespace penstock {

struct ChunkState {
  enum class State : uint8_t { waiting, leased, sent, done };
  State state = State::waiting;
  bool queued = false;  // in the lease stream's waiting set: state waiting, or a lease that expired
  uint32_t generation = 0;
  int failures = 0;
  int failures_in_a_row = 0;  // since it rested
  int rests = 0;
  int64_t first_failed_ns = 0;  // where failures > 0
  int64_t rests_until_ns = -1;  // -1: it does not rest
  int expiries = 0;
  int64_t bytes = 0;                // encoded; 0: unknown
  int64_t group = -1;               // of LeaseStreamState::holders; -1: every loader can read it
  bool compared = false;            // it is to be made twice
  LoaderId leased_to = 0;           // while leased or sent
  int64_t granted_ns = 0;           // likewise
  int64_t made_ns = 0;              // while sent
  int64_t held_ns = -1;             // while sent: from the lease's arrival until it was made, by the loader's clock
  int32_t from_node = -1;           // whose link to the receiver it has to travel; -1: none
  int64_t expires_ns = -1;          // -1: no timer runs
  bool late = false;                // while leased: it was late once, and the budget for hedges was spent
  std::vector<uint64_t> failed_by;  // serials of loaders
};

struct LeaseStreamState {
  using WaitKey = std::tuple<int64_t, int64_t, int32_t>;  // step, minus bytes, chunk
  // not what the client is blocked on, deadline, client not waiting, served longest ago, id
  using ReadyKey = std::tuple<bool, int64_t, bool, uint64_t, LeaseStreamId>;

  struct Step {
    std::vector<ChunkState> chunks;
    int32_t left = 0;
  };

  // Living loaders that can read a group of samples; and, where there is none, who was the last.
  struct Holders {
    std::vector<LoaderId> loaders;
    std::string last_lost;
  };

  LeaseStreamOpened opened;
  std::vector<Holders> holders;  // by group
  std::set<LoaderId> said;       // living loaders that have said what they hold
  int64_t cursor = 0;
  bool client_waits = false;
  uint64_t last_grant = 0;
  int64_t moved_ns = 0;   // when it was last granted something, or began to have waiting chunks
  double mean_bytes = 0;  // of its chunks, as made: encoded
  double mean_pixels = 0;
  std::map<int64_t, Step> steps;  // reserved and not finished
  int64_t finished_below = 0;
  std::set<int64_t> finished;  // at or above finished_below
  std::set<WaitKey> waiting;
  bool is_ready = false;
  ReadyKey ready_key{};

  LeaseStreamId id() const { return opened.lease_stream; }
  int32_t chunks_of(int64_t step) const {
    return step == opened.steps - 1 ? opened.chunks_last_step : opened.chunks_per_step;
  }
};

// Can this loader read what a chunk of this group is made of?
bool may_read(const LeaseStreamState& stream, int64_t group, LoaderId loader);
void set_held(LeaseStreamState& stream, LoaderId loader, const std::vector<int64_t>& groups);
void forget_held(LeaseStreamState& stream, LoaderId loader, const std::string& why);

class LeaseStreamRegistry {
 public:
  LeaseStreamState& open(const LeaseStreamOpened& opened);
  void close(LeaseStreamId id);
  LeaseStreamState* find(LeaseStreamId id);
  std::map<LeaseStreamId, LeaseStreamState>& all() { return streams_; }
  const std::map<LeaseStreamId, LeaseStreamState>& all() const { return streams_; }
  int32_t live_receivers() const { return static_cast<int32_t>(lease_streams_of_receiver_.size()); }

  bool any_on_node(int32_t node) const { return on_node_.count(node) != 0; }
  int32_t waiting_on_node(int32_t node) const {  // lease streams with waiting chunks
    const auto at = on_node_.find(node);
    return at == on_node_.end() ? 0 : at->second.waiting;
  }

  // Adds the step's chunks as waiting, as many as there are groups, where there are; false where the step is reserved or
  // finished already.
  bool reserve(LeaseStreamState& stream, int64_t step, const std::vector<int64_t>& bytes,
               const std::vector<int64_t>& groups);
  ChunkState* chunk(LeaseStreamState& stream, int64_t step, int32_t chunk);  // null: unknown, or its step is finished
  void enqueue(LeaseStreamState& stream, int64_t step, int32_t chunk, ChunkState& state);
  void dequeue(LeaseStreamState& stream, int64_t step, int32_t chunk, ChunkState& state);
  void done(LeaseStreamState& stream, int64_t step, ChunkState& state);  // forgets the step with its last chunk
  void rekey(LeaseStreamState& stream);  // after a change of cursor, client_waits or last_grant

  const std::set<LeaseStreamState::ReadyKey>& ready() const { return ready_; }

 private:
  void set_ready(LeaseStreamState& stream, bool ready);

  std::map<LeaseStreamId, LeaseStreamState> streams_;
  std::map<ReceiverId, int32_t> lease_streams_of_receiver_;
  struct OfNode {
    int32_t open = 0;
    int32_t waiting = 0;
  };
  std::map<int32_t, OfNode> on_node_;
  std::set<LeaseStreamState::ReadyKey> ready_;
};

}  // namespace penstock
