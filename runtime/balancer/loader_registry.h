// The balancer's registry of loaders: leases, chunk buffers, quotas, and which loader takes the next chunk.
//
//   LoaderRegistry registry;
//   LoaderState* loader = registry.best(receiver, node, [](const LoaderState& l) { return l.id != leased_to; }, finish_ns);
//   if (loader != nullptr) registry.grant(*loader, receiver, {lease, work_ns}, ++grants);
//
// Purpose: everything that invariants 1 and 3 of balancer.h say about depth and chunk buffers stands here and nowhere
// else. Every change of a loader goes through a member function, which keeps the order of loaders with room up to date.
// Ownership: pointers stay valid until remove() of that loader. Thread-safety: none; a part of Balancer.
#pragma once

#include <algorithm>
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

// A live lease, and what its chunk is expected to take of its threads' time in an average loader of the class.
struct HeldLease {
  LeaseKey lease;
  int64_t work_ns = 0;
};

struct LoaderState {
  // When it can begin with one chunk more, then the faster one, then served longest ago.
  using RoomKey = std::tuple<int64_t, int64_t, uint64_t, LoaderId>;

  LoaderId id = 0;
  uint64_t serial = 0;  // a loader that joins again is another one
  int32_t depth = 0;
  int32_t threads = 0;
  int32_t ahead = 0;  // leases besides, whose reads run ahead
  int32_t chunk_buffers = 0;
  int32_t node = 0;
  int32_t executor_class = 0;

  int32_t chunk_buffers_used = 0;
  int32_t receivers_here = 0;  // that have a chunk buffer here
  int32_t revoked = 0;
  std::vector<HeldLease> leased;      // live, being made; a handful, so searched
  std::vector<LeaseKey> sent;         // live, made, not accepted yet
  std::vector<ReceiverShare> shares;  // sorted by receiver

  int64_t last_received_ns = 0;
  int64_t next_check_ns = 0;
  int64_t paused_until_ns = 0;  // 0: not paused
  int failures_in_a_row = 0;
  bool stalled = false;
  bool given_up = false;
  bool draining = false;
  SpeedEstimate speed;  // beside its class's mean
  bool slow = false;    // far below its class's median: hardly a lease waits there
  double chunk_ns = 0;  // that an executor takes for a chunk, exponentially weighted; 0: unknown
  double way_ns = 0;    // of a lease to it and the result back, likewise
  uint64_t last_grant = 0;

  // Chunks that its threads work on at a time: half of its leases, the other half hides the round trip. So an executor,
  // here, is threads / executors() threads.
  int32_t executors() const { return std::max(1, depth / 2); }
  bool usable() const { return !stalled && !given_up && !draining && paused_until_ns == 0; }
  // From the work of all threads for a chunk to the time that one of its executors takes.
  double at_its_threads_ns(double work_ns) const {
    return threads == 0 ? work_ns : work_ns * static_cast<double>(executors()) / static_cast<double>(threads);
  }
  int64_t at_its_speed_ns(int64_t work_ns) const {
    return static_cast<int64_t>(at_its_threads_ns(static_cast<double>(work_ns)) / speed.value());
  }
  std::vector<LeaseKey> live_leases() const;
  bool has_leased(const LeaseKey& lease) const;
  // Leases that it may hold: those that it works on, one more for each executor where it is not slow; or as many more as
  // it makes while a result travels to us and a lease back. For the fast and the far that is more than two. A slow one
  // whose chunks are the work of several threads has half as many more, because the last samples of a chunk leave
  // threads idle.
  int32_t most_leases() const;
  // Until one of its executors is free for a chunk that it is granted now.
  int64_t ready_ns() const;

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
  const std::vector<const LoaderState*>& in_order() const { return in_order_; }  // of ids
  const std::vector<const LoaderState*>& of_node(int32_t node) const {
    static const std::vector<const LoaderState*> none;
    const auto at = of_node_.find(node);
    return at == of_node_.end() ? none : at->second;
  }
  bool nobody_has_room() const { return room_.empty(); }

  void receiver_seen(ReceiverId receiver);
  void set_live_receivers(int32_t live) { live_receivers_ = live; }

  // Depth, chunk buffers and quota: may this loader take one more lease for this receiver?
  bool admits(const LoaderState& loader, ReceiverId receiver) const;

  // The loader with room that should take a chunk for this receiver, among those that `allowed` says yes to: the one for
  // which finish_ns(loader), never below its ready_ns(), is least. Looks at the first few of the node and of all alone,
  // in the order of room_. Null when none may.
  template <class Allowed, class Finish>
  LoaderState* best(ReceiverId receiver, int32_t node, const Allowed& allowed, const Finish& finish_ns) {
    LoaderState* best = nullptr;
    int64_t least_ns = INT64_MAX;
    const auto look = [&](const Room& room) {
      constexpr int kLooks = 8;
      int looked = 0;
      for (const LoaderState::RoomKey& key : room) {
        if (std::get<0>(key) >= least_ns || looked == kLooks) return;
        LoaderState& loader = loaders_.find(std::get<3>(key))->second;
        if (!admits(loader, receiver) || !allowed(loader)) continue;
        ++looked;
        const int64_t finish = finish_ns(loader);
        if (finish < least_ns) best = &loader, least_ns = finish;
      }
    };
    const auto local = room_of_node_.find(node);
    if (local != room_of_node_.end()) look(local->second);
    look(room_);
    return best;
  }

  // How many chunk buffers a receiver may have at this loader.
  int32_t quota(const LoaderState& loader) const;

  void grant(LoaderState& loader, ReceiverId receiver, const HeldLease& lease, uint64_t grant_number);
  // leased -> sent; false: not leased here
  bool made(LoaderState& loader, ReceiverId receiver, const LeaseKey& lease);
  // leased or sent -> gone; its chunk buffer stays used
  bool finish(LoaderState& loader, ReceiverId receiver, const LeaseKey& lease);
  void revoke(LoaderState& loader, ReceiverId receiver, const LeaseKey& lease);  // leased -> revoked
  void revoked_answered(LoaderState& loader, const LeaseKey& lease);             // a revoked lease's result came
  void chunk_buffer_freed(LoaderState& loader, ReceiverId receiver);
  void refresh(LoaderState& loader);  // after a change of ahead, usable(), slow or speed

 private:
  using Room = std::set<LoaderState::RoomKey>;

  ReceiverShare& share(LoaderState& loader, ReceiverId receiver);
  static const ReceiverShare* find_share(const LoaderState& loader, ReceiverId receiver);
  void drop_if_empty(LoaderState& loader, ReceiverId receiver);
  void leave_room(LoaderState& loader);

  int32_t receivers_of_job_;
  int32_t receivers_seen_ = 0;
  int32_t live_receivers_ = 0;
  uint64_t serials_ = 0;
  std::map<LoaderId, LoaderState> loaders_;
  std::vector<const LoaderState*> in_order_;  // the same
  std::map<int32_t, std::vector<const LoaderState*>> of_node_;
  Room room_;
  std::map<int32_t, Room> room_of_node_;
};

}  // namespace penstock
