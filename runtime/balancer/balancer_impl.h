// The balancer's inside: what it knows, and which of its sources decides what.
//
//   balancer.cpp         what happened: each event that is not of time, and what it makes possible
//   balancer_grants.cpp  who makes what: grants, chunks that are made twice, the order in which loaders and lease streams
//                        are looked at
//   balancer_faults.cpp  what goes wrong: leases that are late, loaders that are silent, fail or are lost, chunks that
//                        nobody can make
//
// Only those three include it. Failure, ownership and thread-safety: balancer.h.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "runtime/balancer/balancer.h"
#include "runtime/balancer/finish_times.h"
#include "runtime/balancer/lease_stream_registry.h"
#include "runtime/balancer/lease_times.h"
#include "runtime/balancer/loader_registry.h"

namespace penstock {

// At the end of every event no waiting chunk is admitted by any loader that does not leave it to others (under policy
// `random` by no loader at all). So an event need only look at what it made possible: a loader with new room against the
// lease streams in order, new chunks of a lease stream against the loaders in order. Moving a cursor makes nothing
// possible, it only re-keys. What a loader left to others is looked at again at every Tick.
class Balancer::Impl {
 public:
  explicit Impl(const BalancerOptions& options);
  std::vector<Action> step(int64_t now_ns, const Event& event);
  std::map<LoaderId, LoaderFigures> figures() const;
  bool any_apart() const;
  CostFigures cost(int32_t executor_class) const;
  std::vector<LinkFigures> links() const;

 private:
  using State = ChunkState::State;
  static constexpr int kFailuresBeforePause = 3;

  // ---- events of loaders (balancer.cpp) -------------------------------------------------------------------------
  void on(const LoaderJoined& e);
  void on(const LoaderAlive& e);
  void on(const LoaderLost& e);
  void on(const LoaderDraining& e);
  void on(const LoaderAhead& e);
  void on(const ChunkProduced& e);
  void on(const ChunkFailed& e);
  void on(const ChunkBufferFreed& e);

  // ---- events of receivers (balancer.cpp) -----------------------------------------------------------------------
  void on(const LeaseStreamOpened& e);
  void on(const BatchBufferReserved& e);
  void on(const SamplesHeld& e);
  void on(const CursorMoved& e);
  void on(const LeaseStreamClosed& e);
  void on(const ChunkAccepted& e);

  // ---- time (balancer_faults.cpp) -------------------------------------------------------------------------------
  void on(const Tick&);
  void fail_unreadable();
  int64_t stalled_after() const;
  void check_at(LoaderState& loader, int64_t at_ns);
  bool check_silence();
  bool release_held(const LoaderState& loader);
  LoaderState* note_alive(LoaderId id);
  void pause(LoaderState& loader);
  bool end_pauses();
  bool end_rests();
  void stop_rest(const LeaseKey& lease, ChunkState& chunk);
  void rest_or_fail(LeaseStreamState& stream, const LeaseKey& lease, ChunkState& chunk, const std::string& reason);
  bool expire_leases();
  bool may_hedge(const LeaseStreamState& stream, const ChunkState& chunk) const;
  static int64_t since_ns(const ChunkState& chunk);
  static int64_t doubled(int64_t wait_limit, const ChunkState& chunk);
  int64_t lateness(const ChunkState& chunk) const;
  void observe_time(State state, int64_t took_ns);
  void start_timer(const LeaseKey& lease, ChunkState& chunk, int64_t wait_limit);
  void stop_timer(const LeaseKey& lease, ChunkState& chunk);

  // ---- ends (balancer_faults.cpp) -------------------------------------------------------------------------------
  void lose(LoaderId id, const std::string& reason);
  std::string name(LoaderId loader) const;
  bool hopeless(const LeaseStreamState& stream, const ChunkState& chunk) const;
  bool has_reader(const LeaseStreamState& stream, int64_t group) const;
  bool has_reader_besides(const LeaseStreamState& stream, int64_t group, LoaderId loader) const;
  void fail_hopeless();
  void fail_chunk(LeaseStreamState& stream, const LeaseKey& lease, const ChunkState& chunk, const std::string& reason);
  void fail(LeaseStreamState& stream, const std::string& reason, const LeaseKey& unreadable = {});
  void close(LeaseStreamState& stream);
  template <class Map>
  static void erase_stream(Map& map, LeaseStreamId id) {
    map.erase(map.lower_bound(LeaseKey{id, INT64_MIN, INT32_MIN, 0}),
              map.upper_bound(LeaseKey{id, INT64_MAX, INT32_MAX, UINT32_MAX}));
  }

  // ---- chunks that are made twice (balancer_grants.cpp) ---------------------------------------------------------
  bool is_to_be_compared(const LeaseStreamState& stream, const ChunkState& chunk) const;
  void grant_remakes();
  void remake_accepted(const LeaseStreamState& stream, const LeaseKey& lease);
  void forget_remakes(const LeaseStreamState& stream);
  void say_who_has_drained();
  void revoke(const LeaseStreamState& stream, const LeaseKey& lease, LoaderState& holder);

  // ---- grants (balancer_grants.cpp) -----------------------------------------------------------------------------
  static bool failed_by(const ChunkState& chunk, const LoaderState& loader);
  bool allowed(const LeaseStreamState& stream, const ChunkState& chunk, const LoaderState& loader) const;
  bool apart(const LeaseStreamState& stream, const LoaderState& loader) const;
  void grant(LeaseStreamState& stream, int64_t step, int32_t index, ChunkState& chunk, LoaderState& loader);
  static bool has_history(const ChunkState& chunk);
  int64_t left_to_others(const LoaderState& loader, const LeaseStreamState& stream, const ChunkState& chunk);
  bool grant_from(LeaseStreamState& stream);
  bool grant_to(LoaderState& loader, LeaseStreamState& stream);
  bool link_is_full(const LoaderState& loader, const LeaseStreamState& stream);

  // ---- links, and the order of grants (balancer_grants.cpp) -----------------------------------------------------
  void leave_link(const LeaseStreamState& stream, ChunkState& chunk);
  void arrived(const LeaseStreamState& stream, ChunkState& chunk);
  static void note_figures(LoaderFigures& figures, const LoaderState& loader);
  void dispatch_lease_stream(LeaseStreamState& stream);
  // A grant makes nothing else possible and moves its lease stream back in the order, so one pass over the order is
  // enough.
  template <class Room, class TryLeaseStream>
  void pass_over_ready(const Room& room_left, const TryLeaseStream& try_lease_stream) {
    auto at = streams_.ready().begin();
    while (at != streams_.ready().end() && room_left()) {
      const LeaseStreamState::ReadyKey key = *at;
      try_lease_stream(*streams_.find(std::get<4>(key)));
      at = streams_.ready().upper_bound(key);  // the lease stream's own key is a later one now, or it was refused
    }
  }
  void dispatch_loader(LoaderState& loader);
  void dispatch_all();
  void dispatch_random();

  // ---- names ----------------------------------------------------------------------------------------------------
  static LeaseKey place_of(LeaseKey lease) {
    lease.generation = 0;
    return lease;
  }
  ChunkState* held_chunk(LeaseStreamState& stream, const LeaseKey& lease) {
    ChunkState* chunk = streams_.chunk(stream, lease.step, lease.chunk);
    if (chunk == nullptr || chunk->generation != lease.generation) return nullptr;
    return chunk->state == State::leased || chunk->state == State::sent ? chunk : nullptr;
  }

  const BalancerOptions options_;
  int64_t now_ = 0;
  LoaderRegistry loaders_;
  LeaseStreamRegistry streams_;
  FinishTimes finish_;
  bool left_to_others_ = false;                    // by some loader, since the last Tick
  std::map<LoaderId, LoaderFigures> figures_;      // of lost loaders too
  std::map<LeaseKey, std::string> failed_chunks_;  // chunks that failed, by generation 0, with the last reason
  std::set<std::pair<int64_t, LeaseKey>> timers_;  // when leases expire, by generation 0
  std::set<std::pair<int64_t, LeaseKey>> rests_;   // until when failed chunks rest, by generation 0
  std::set<std::pair<int64_t, LoaderId>> checks_;  // when to look at a loader's silence
  std::set<std::pair<int64_t, LoaderId>> pauses_;  // until when a failing loader gets nothing
  bool any_loader_ever_ = false;
  LeaseTimes times_;
  LeaseTimes transits_;  // of chunks that are made, until they are accepted
  uint64_t hedges_ = 0;
  struct FirstMade {
    LoaderId made_by = 0;
    int64_t group = -1;
  };
  std::map<LeaseKey, FirstMade> remakes_wanted_;  // by generation 0
  std::map<LeaseKey, LoaderId> remakes_;          // granted, and to whom
  uint32_t remake_generation_ = 0;
  std::set<LoaderId> draining_;  // that have not been said to have drained
  // What this loader made for that receiver did not arrive in time, and nothing has since: they may not reach each other.
  std::set<std::pair<ReceiverId, LoaderId>> apart_;
  int64_t last_stall_ns_ = 0;  // 0: no loader ever stood still
  int64_t last_loss_ns_ = 0;
  std::string last_loss_;
  uint64_t grants_ = 0;
  uint64_t draws_ = 0;
  std::vector<Action> actions_;
};

}  // namespace penstock
