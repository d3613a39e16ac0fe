// The balancer's book of streams: which chunks wait, which are out, which are done; and which chunk is next.
//
//   StreamBook book;
//   for (const auto& key : book.ready()) ...      // streams with waiting chunks, most urgent first
//   stream.waiting.begin()                         // the stream's most urgent chunk
//
// Purpose: the order of work (balancer.h) stands here and nowhere else: a set of waiting chunks for each stream, and
// one
//   set of streams, keyed by their first chunk. A cursor that moves re-keys one stream, never its chunks.
// Memory: a step exists from SlotReserved until its last chunk is accepted, so the book is as large as the slots are.
// Ownership: pointers stay valid until the step is finished or the stream closed. Thread-safety: none; a part of
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
  bool queued = false;  // in the stream's waiting set: state waiting, or a lease that expired
  uint32_t generation = 0;
  int failures = 0;
  int expiries = 0;
  int64_t weight = 0;
  LoaderId holder = 0;              // while leased or sent
  int64_t expires_ns = -1;          // -1: no timer runs
  std::vector<uint64_t> failed_by;  // serials of loaders
};

struct StreamState {
  using WaitKey = std::tuple<int64_t, int64_t, int32_t>;  // step, minus weight, chunk
  // not what the client is blocked on, deadline, client not waiting, served longest ago, id
  using ReadyKey = std::tuple<bool, int64_t, bool, uint64_t, StreamId>;

  struct Step {
    std::vector<ChunkState> chunks;
    int32_t left = 0;
  };

  StreamOpened opened;
  int64_t cursor = 0;
  bool client_waits = false;
  uint64_t last_grant = 0;
  std::map<int64_t, Step> steps;  // reserved and not finished
  int64_t finished_below = 0;
  std::set<int64_t> finished;  // at or above finished_below
  std::set<WaitKey> waiting;
  bool is_ready = false;
  ReadyKey ready_key{};

  StreamId id() const { return opened.stream; }
  int32_t chunks_of(int64_t step) const {
    return step == opened.steps - 1 ? opened.chunks_last_step : opened.chunks_per_step;
  }
};

class StreamBook {
 public:
  StreamState& open(const StreamOpened& opened);
  void close(StreamId id);
  StreamState* find(StreamId id);
  std::map<StreamId, StreamState>& all() { return streams_; }
  int32_t live_ports() const { return static_cast<int32_t>(streams_of_port_.size()); }

  // Adds the step's chunks as waiting; false where the step is reserved or finished already.
  bool reserve(StreamState& stream, int64_t step, const std::vector<int64_t>& weights);
  ChunkState* chunk(StreamState& stream, int64_t step, int32_t chunk);  // null: unknown, or its step is finished
  void enqueue(StreamState& stream, int64_t step, int32_t chunk, ChunkState& state);
  void dequeue(StreamState& stream, int64_t step, int32_t chunk, ChunkState& state);
  void done(StreamState& stream, int64_t step, ChunkState& state);  // forgets the step with its last chunk
  void rekey(StreamState& stream);  // after a change of cursor, client_waits or last_grant

  const std::set<StreamState::ReadyKey>& ready() const { return ready_; }

 private:
  std::map<StreamId, StreamState> streams_;
  std::map<PortId, int32_t> streams_of_port_;
  std::set<StreamState::ReadyKey> ready_;
};

}  // namespace penstock
