// The balancer's registry of loaders: leases, chunk buffers, quotas, and which loader takes the next chunk.
//
//   LoaderRegistry registry;
//   LoaderState* loader = registry.best(receiver, node, [](const LoaderState& l) { return l.id != holder; });
//   if (loader != nullptr) registry.grant(*loader, receiver, lease);
//
// Purpose: everything that invariants 1 and 3 of balancer.h say about depth and chunk buffers stands here and nowhere
// else. Every change of a loader goes through a member function, which keeps the order of loaders with room up to date.
// Ownership: pointers stay valid until remove() of that loader. Thread-safety: none; a part of Balancer.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "runtime/balancer/balancer.h"
#include "runtime/balancer/cost_model.h"

namespace penstock {

// What one receiver holds at one loader.
struct ReceiverShare {
  ReceiverId receiver = 0;
  int32_t chunk_buffers = 0;      // granted and not yet freed
  int32_t leased = 0;             // live leases that are not made yet
  std::vector<LeaseKey> revoked;  // still counted in the loader's depth
};

struct LoaderState {
  // Expected finish, then served longest ago.
  using RoomKey = std::tuple<int64_t, uint64_t, LoaderId>;

  LoaderId id = 0;
  uint64_t serial = 0;  // a loader that joins again is another one
  int32_t depth = 0;
  int32_t ahead = 0;  // leases besides, whose reads run ahead
  int32_t chunk_buffers = 0;
  int32_t node = 0;

  int32_t chunk_buffers_used = 0;
  int32_t holders = 0;  // receivers with a chunk buffer here
  int32_t revoked = 0;
  std::vector<LeaseKey> leased;       // live, being made; a handful, so searched
  std::vector<LeaseKey> sent;         // live, made, not accepted yet
  std::vector<ReceiverShare> shares;  // sorted by receiver

  int64_t last_received_ns = 0;
  int64_t next_check_ns = 0;
  int64_t paused_until_ns = 0;  // 0: not paused
  int failures_in_a_row = 0;
  bool stalled = false;
  bool given_up = false;
  bool draining = false;
  SpeedEstimate speed;
  uint64_t last_grant = 0;

  bool has_room = false;
  RoomKey room_key{};
};

class LoaderRegistry {
 public:
  explicit LoaderRegistry(int32_t receivers_of_job) : receivers_of_job_(receivers_of_job) {}

  LoaderState& join(const LoaderJoined& joined, int64_t now_ns);
  void remove(LoaderId id);
  LoaderState* find(LoaderId id);
  const std::map<LoaderId, LoaderState>& all() const { return loaders_; }
  bool nobody_has_room() const { return room_.empty(); }

  void receiver_seen(ReceiverId receiver);
  void set_live_receivers(int32_t live) { live_receivers_ = live; }

  // Depth, chunk buffers and quota: may this loader take one more lease for this receiver?
  bool admits(const LoaderState& loader, ReceiverId receiver) const;

  // The loader that should take a chunk for this receiver, among those that `allowed` says yes to; null when none may.
  template <class Allowed>
  LoaderState* best(ReceiverId receiver, int32_t node, const Allowed& allowed) {
    LoaderState* any = first_of(room_, receiver, allowed, INT64_MAX);
    if (any == nullptr || any->node == node) return any;
    const auto local_room = room_of_node_.find(node);
    if (local_room == room_of_node_.end()) return any;
    // Moving a chunk between nodes is cheap beside making it: locality may cost a quarter of the time, not more.
    const int64_t finish = std::get<0>(any->room_key);
    LoaderState* local = first_of(local_room->second, receiver, allowed, finish + finish / 4);
    return local != nullptr ? local : any;
  }

  void grant(LoaderState& loader, ReceiverId receiver, const LeaseKey& lease, uint64_t grant_number);
  // leased -> sent; false: not leased here
  bool made(LoaderState& loader, ReceiverId receiver, const LeaseKey& lease);
  // leased or sent -> gone; its chunk buffer stays used
  bool finish(LoaderState& loader, ReceiverId receiver, const LeaseKey& lease);
  void revoke(LoaderState& loader, ReceiverId receiver, const LeaseKey& lease);  // leased -> revoked
  void revoked_answered(LoaderState& loader, const LeaseKey& lease);             // a revoked lease's result came
  void chunk_buffer_freed(LoaderState& loader, ReceiverId receiver);
  void refresh(LoaderState& loader);  // after a change of ahead, stalled, given_up, draining, paused_until_ns or speed

 private:
  using Room = std::set<LoaderState::RoomKey>;

  template <class Allowed>
  LoaderState* first_of(const Room& room, ReceiverId receiver, const Allowed& allowed, int64_t latest_finish) {
    for (const LoaderState::RoomKey& key : room) {
      if (std::get<0>(key) > latest_finish) return nullptr;
      LoaderState& loader = loaders_.find(std::get<2>(key))->second;
      if (admits(loader, receiver) && allowed(loader)) return &loader;
    }
    return nullptr;
  }
  ReceiverShare& share(LoaderState& loader, ReceiverId receiver);
  static const ReceiverShare* find_share(const LoaderState& loader, ReceiverId receiver);
  void drop_if_empty(LoaderState& loader, ReceiverId receiver);
  void leave_room(LoaderState& loader);

  int32_t receivers_of_job_;
  int32_t receivers_seen_ = 0;
  int32_t live_receivers_ = 0;
  uint64_t serials_ = 0;
  std::map<LoaderId, LoaderState> loaders_;
  Room room_;
  std::map<int32_t, Room> room_of_node_;
};

}  // namespace penstock
