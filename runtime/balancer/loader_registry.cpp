#include "runtime/balancer/loader_registry.h"

#include <algorithm>
#include <cmath>

namespace penstock {

namespace {

bool erase_lease(std::vector<LeaseKey>& leases, const LeaseKey& lease) {
  const auto at = std::find(leases.begin(), leases.end(), lease);
  if (at == leases.end()) return false;
  leases.erase(at);
  return true;
}

bool erase_lease(std::vector<HeldLease>& leases, const LeaseKey& lease) {
  return std::erase_if(leases, [&lease](const HeldLease& held) { return held.lease == lease; }) > 0;
}

bool before_id(const LoaderState* loader, LoaderId id) {
  return loader->id < id;
}

bool before(const ReceiverShare& share, ReceiverId receiver) {
  return share.receiver < receiver;
}

}  // namespace

std::vector<LeaseKey> LoaderState::live_leases() const {
  std::vector<LeaseKey> live;
  for (const HeldLease& held : leased) live.push_back(held.lease);
  live.insert(live.end(), sent.begin(), sent.end());
  return live;
}

bool LoaderState::has_leased(const LeaseKey& lease) const {
  return std::any_of(leased.begin(), leased.end(), [&lease](const HeldLease& held) { return held.lease == lease; });
}

int32_t LoaderState::most_leases() const {
  constexpr double kMost = 8;                                  // times its executors
  const double chunks = chunk_ns > 0 ? way_ns / chunk_ns : 0;  // that an executor makes on the way of one
  const double in_transit = std::min(kMost, slow ? std::floor(chunks) : std::ceil(chunks)) * executors();
  const int32_t shared = threads > executors() ? std::max(1, executors() / 2) : 0;
  const int32_t queued = slow ? shared : depth - executors();
  const int32_t behind = std::max(queued, static_cast<int32_t>(in_transit));
  return executors() + behind + (slow ? 0 : ahead);
}

int64_t LoaderState::ready_ns() const {
  const auto queue = static_cast<int32_t>(leased.size()) + revoked;
  if (queue < executors()) return 0;
  int64_t work_ns = 0;
  for (const HeldLease& held : leased) work_ns += held.work_ns;
  if (!leased.empty()) work_ns += work_ns / std::ssize(leased) * revoked;
  return at_its_speed_ns(std::max<int64_t>(1, work_ns) / executors());
}

LoaderState& LoaderRegistry::join(const LoaderJoined& joined, int64_t now_ns) {
  remove(joined.loader);
  LoaderState& loader = loaders_[joined.loader];
  loader.id = joined.loader;
  for (auto* list : {&in_order_, &of_node_[joined.node]}) {
    list->insert(std::lower_bound(list->begin(), list->end(), joined.loader, before_id), &loader);
  }
  loader.serial = ++serials_;
  loader.depth = joined.depth;
  loader.threads = joined.threads;
  loader.chunk_buffers = joined.chunk_buffers;
  loader.node = joined.node;
  loader.executor_class = joined.executor_class;
  loader.last_received_ns = now_ns;
  refresh(loader);
  return loader;
}

void LoaderRegistry::remove(LoaderId id) {
  const auto at = loaders_.find(id);
  if (at == loaders_.end()) return;
  leave_room(at->second);
  for (auto* list : {&in_order_, &of_node_[at->second.node]}) {
    list->erase(std::lower_bound(list->begin(), list->end(), id, before_id));
  }
  loaders_.erase(at);
}

LoaderState* LoaderRegistry::find(LoaderId id) {
  const auto at = loaders_.find(id);
  return at == loaders_.end() ? nullptr : &at->second;
}

void LoaderRegistry::receiver_seen(ReceiverId receiver) {
  receivers_seen_ = std::max(receivers_seen_, receiver + 1);
}

const ReceiverShare* LoaderRegistry::find_share(const LoaderState& loader, ReceiverId receiver) {
  const auto at = std::lower_bound(loader.shares.begin(), loader.shares.end(), receiver, before);
  return at != loader.shares.end() && at->receiver == receiver ? &*at : nullptr;
}

ReceiverShare& LoaderRegistry::share(LoaderState& loader, ReceiverId receiver) {
  auto at = std::lower_bound(loader.shares.begin(), loader.shares.end(), receiver, before);
  if (at == loader.shares.end() || at->receiver != receiver)
    at = loader.shares.insert(at, ReceiverShare{receiver, 0, 0, {}});
  return *at;
}

void LoaderRegistry::drop_if_empty(LoaderState& loader, ReceiverId receiver) {
  const auto at = std::lower_bound(loader.shares.begin(), loader.shares.end(), receiver, before);
  if (at == loader.shares.end() || at->receiver != receiver) return;
  if (at->chunk_buffers == 0 && at->leased == 0 && at->revoked.empty()) loader.shares.erase(at);
}

int32_t LoaderRegistry::quota(const LoaderState& loader) const {
  const int32_t live = std::max(1, live_receivers_);
  return (loader.chunk_buffers + live - 1) / live;
}

bool LoaderRegistry::admits(const LoaderState& loader, ReceiverId receiver) const {
  if (!loader.has_room) return false;
  const ReceiverShare* held = find_share(loader, receiver);
  if (held == nullptr || held->chunk_buffers == 0) return true;  // what was kept free is for it
  if (held->chunk_buffers >= quota(loader)) return false;
  // Keep a chunk buffer for every receiver without one; receivers of an unknown job: one more may always come.
  const int32_t receivers = receivers_of_job_ > 0 ? std::max(receivers_of_job_, receivers_seen_) : receivers_seen_ + 1;
  int32_t reserve = receivers - loader.receivers_here;
  if (loader.chunk_buffers < receivers) reserve = std::min(reserve, std::max(1, loader.chunk_buffers / 2));
  return loader.chunk_buffers - loader.chunk_buffers_used - 1 >= reserve;
}

void LoaderRegistry::leave_room(LoaderState& loader) {
  if (!loader.has_room) return;
  room_.erase(loader.room_key);
  const auto node = room_of_node_.find(loader.node);
  node->second.erase(loader.room_key);
  if (node->second.empty()) room_of_node_.erase(node);
  loader.has_room = false;
}

void LoaderRegistry::refresh(LoaderState& loader) {
  const int32_t queue = static_cast<int32_t>(loader.leased.size()) + loader.revoked;
  if (queue >= loader.most_leases() || loader.chunk_buffers_used >= loader.chunk_buffers || !loader.usable())
    return leave_room(loader);
  constexpr int64_t kUnit_ns = 1'000'000;
  const LoaderState::RoomKey key{loader.ready_ns(), loader.at_its_speed_ns(kUnit_ns), loader.last_grant, loader.id};
  if (loader.has_room && key == loader.room_key) return;
  leave_room(loader);
  loader.room_key = key;
  loader.has_room = true;
  room_.insert(key);
  room_of_node_[loader.node].insert(key);
}

void LoaderRegistry::grant(LoaderState& loader, ReceiverId receiver, const HeldLease& lease, uint64_t grant_number) {
  loader.leased.push_back(lease);
  ReceiverShare& held = share(loader, receiver);
  ++held.leased;
  if (held.chunk_buffers++ == 0) ++loader.receivers_here;
  ++loader.chunk_buffers_used;
  loader.last_grant = grant_number;
  refresh(loader);
}

bool LoaderRegistry::made(LoaderState& loader, ReceiverId receiver, const LeaseKey& lease) {
  if (!erase_lease(loader.leased, lease)) return false;
  loader.sent.push_back(lease);
  --share(loader, receiver).leased;
  // the receiver's ChunkBufferFreed may have been faster than the loader's ChunkProduced
  drop_if_empty(loader, receiver);
  refresh(loader);
  return true;
}

bool LoaderRegistry::finish(LoaderState& loader, ReceiverId receiver, const LeaseKey& lease) {
  if (erase_lease(loader.leased, lease)) {
    --share(loader, receiver).leased;
    drop_if_empty(loader, receiver);
    refresh(loader);
    return true;
  }
  return erase_lease(loader.sent, lease);
}

void LoaderRegistry::revoke(LoaderState& loader, ReceiverId receiver, const LeaseKey& lease) {
  if (!erase_lease(loader.leased, lease)) return;
  ReceiverShare& held = share(loader, receiver);
  --held.leased;
  // Its chunk buffer may be back already, where the receiver was faster than the loader; then nothing is left to wait
  // for.
  if (static_cast<int32_t>(held.revoked.size()) < held.chunk_buffers - held.leased) {
    held.revoked.push_back(lease);
    ++loader.revoked;
  }
  drop_if_empty(loader, receiver);
  refresh(loader);
}

void LoaderRegistry::revoked_answered(LoaderState& loader, const LeaseKey& lease) {
  for (ReceiverShare& held : loader.shares) {
    if (!erase_lease(held.revoked, lease)) continue;
    --loader.revoked;
    drop_if_empty(loader, held.receiver);
    refresh(loader);
    return;
  }
}

void LoaderRegistry::chunk_buffer_freed(LoaderState& loader, ReceiverId receiver) {
  const ReceiverShare* known = find_share(loader, receiver);
  if (known == nullptr || known->chunk_buffers == 0) return;
  ReceiverShare& held = share(loader, receiver);
  if (--held.chunk_buffers == 0) --loader.receivers_here;
  --loader.chunk_buffers_used;
  // Each revoked lease holds a chunk buffer, so there cannot be more of them than chunk buffers without a live lease.
  while (!held.revoked.empty() && static_cast<int32_t>(held.revoked.size()) > held.chunk_buffers - held.leased) {
    held.revoked.erase(held.revoked.begin());
    --loader.revoked;
  }
  drop_if_empty(loader, receiver);
  refresh(loader);
}

}  // namespace penstock
