#include "runtime/balancer/loader_book.h"

#include <algorithm>

namespace penstock {

namespace {

bool erase_lease(std::vector<LeaseKey>& leases, const LeaseKey& lease) {
  const auto at = std::find(leases.begin(), leases.end(), lease);
  if (at == leases.end()) return false;
  leases.erase(at);
  return true;
}

bool before(const PortShare& share, PortId port) {
  return share.port < port;
}

}  // namespace

LoaderState& LoaderBook::join(const LoaderJoined& joined, int64_t now_ns) {
  LoaderState& loader = loaders_[joined.loader];
  loader.id = joined.loader;
  loader.serial = ++serials_;
  loader.depth = joined.depth;
  loader.cells = joined.cells;
  loader.node = joined.node;
  loader.last_heard_ns = now_ns;
  refresh(loader);
  return loader;
}

void LoaderBook::remove(LoaderId id) {
  const auto at = loaders_.find(id);
  if (at == loaders_.end()) return;
  leave_room(at->second);
  loaders_.erase(at);
}

LoaderState* LoaderBook::find(LoaderId id) {
  const auto at = loaders_.find(id);
  return at == loaders_.end() ? nullptr : &at->second;
}

void LoaderBook::port_seen(PortId port) {
  ports_seen_ = std::max(ports_seen_, port + 1);
}

const PortShare* LoaderBook::find_share(const LoaderState& loader, PortId port) {
  const auto at = std::lower_bound(loader.shares.begin(), loader.shares.end(), port, before);
  return at != loader.shares.end() && at->port == port ? &*at : nullptr;
}

PortShare& LoaderBook::share(LoaderState& loader, PortId port) {
  auto at = std::lower_bound(loader.shares.begin(), loader.shares.end(), port, before);
  if (at == loader.shares.end() || at->port != port) at = loader.shares.insert(at, PortShare{port, 0, 0, {}});
  return *at;
}

void LoaderBook::drop_if_empty(LoaderState& loader, PortId port) {
  const auto at = std::lower_bound(loader.shares.begin(), loader.shares.end(), port, before);
  if (at == loader.shares.end() || at->port != port) return;
  if (at->cells == 0 && at->leased == 0 && at->revoked.empty()) loader.shares.erase(at);
}

bool LoaderBook::admits(const LoaderState& loader, PortId port) const {
  if (!loader.has_room) return false;
  const PortShare* held = find_share(loader, port);
  if (held == nullptr || held->cells == 0) return true;  // what was kept free is for it
  const int32_t live = std::max(1, live_ports_);
  if (held->cells >= (loader.cells + live - 1) / live) return false;
  // Keep a cell for every port without one; ports of an unknown job: one more may always come.
  const int32_t ports = ports_of_job_ > 0 ? std::max(ports_of_job_, ports_seen_) : ports_seen_ + 1;
  int32_t reserve = ports - loader.holders;
  if (loader.cells < ports) reserve = std::min(reserve, std::max(1, loader.cells / 2));
  return loader.cells - loader.cells_used - 1 >= reserve;
}

void LoaderBook::leave_room(LoaderState& loader) {
  if (!loader.has_room) return;
  room_.erase(loader.room_key);
  const auto node = room_of_node_.find(loader.node);
  node->second.erase(loader.room_key);
  if (node->second.empty()) room_of_node_.erase(node);
  loader.has_room = false;
}

void LoaderBook::refresh(LoaderState& loader) {
  const int32_t queue = static_cast<int32_t>(loader.leased.size()) + loader.revoked;
  const bool has_room = queue < loader.depth + loader.ahead && loader.cells_used < loader.cells && !loader.stalled &&
                        !loader.given_up && loader.paused_until_ns == 0;
  if (!has_room) return leave_room(loader);
  // Two leases for each executor, so depth / 2 of them work at a time; a chunk waits for the rounds before it.
  const int32_t rounds = queue / std::max(1, loader.depth / 2) + 1;
  const LoaderState::RoomKey key{static_cast<int64_t>(rounds * 1e6 / loader.speed.value()), loader.last_grant,
                                 loader.id};
  if (loader.has_room && key == loader.room_key) return;
  leave_room(loader);
  loader.room_key = key;
  loader.has_room = true;
  room_.insert(key);
  room_of_node_[loader.node].insert(key);
}

void LoaderBook::grant(LoaderState& loader, PortId port, const LeaseKey& lease, uint64_t grant_number) {
  loader.leased.push_back(lease);
  PortShare& held = share(loader, port);
  ++held.leased;
  if (held.cells++ == 0) ++loader.holders;
  ++loader.cells_used;
  loader.last_grant = grant_number;
  refresh(loader);
}

bool LoaderBook::made(LoaderState& loader, PortId port, const LeaseKey& lease) {
  if (!erase_lease(loader.leased, lease)) return false;
  loader.sent.push_back(lease);
  --share(loader, port).leased;
  drop_if_empty(loader, port);  // the port's CellFreed may have been faster than the loader's ChunkMade
  refresh(loader);
  return true;
}

bool LoaderBook::finish(LoaderState& loader, PortId port, const LeaseKey& lease) {
  if (erase_lease(loader.leased, lease)) {
    --share(loader, port).leased;
    drop_if_empty(loader, port);
    refresh(loader);
    return true;
  }
  return erase_lease(loader.sent, lease);
}

void LoaderBook::revoke(LoaderState& loader, PortId port, const LeaseKey& lease) {
  if (!erase_lease(loader.leased, lease)) return;
  PortShare& held = share(loader, port);
  --held.leased;
  // Its cell may be back already, where the port was faster than the loader; then nothing is left to wait for.
  if (static_cast<int32_t>(held.revoked.size()) < held.cells - held.leased) {
    held.revoked.push_back(lease);
    ++loader.revoked;
  }
  drop_if_empty(loader, port);
  refresh(loader);
}

void LoaderBook::revoked_answered(LoaderState& loader, const LeaseKey& lease) {
  for (PortShare& held : loader.shares) {
    if (!erase_lease(held.revoked, lease)) continue;
    --loader.revoked;
    drop_if_empty(loader, held.port);
    refresh(loader);
    return;
  }
}

void LoaderBook::cell_freed(LoaderState& loader, PortId port) {
  const PortShare* known = find_share(loader, port);
  if (known == nullptr || known->cells == 0) return;
  PortShare& held = share(loader, port);
  if (--held.cells == 0) --loader.holders;
  --loader.cells_used;
  // Each revoked lease holds a cell, so there cannot be more of them than cells without a live lease.
  while (!held.revoked.empty() && static_cast<int32_t>(held.revoked.size()) > held.cells - held.leased) {
    held.revoked.erase(held.revoked.begin());
    --loader.revoked;
  }
  drop_if_empty(loader, port);
  refresh(loader);
}

}  // namespace penstock
