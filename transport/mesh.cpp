#include "transport/mesh.h"

#include <algorithm>

#include "runtime/base/error.h"

namespace penstock {
namespace {

constexpr int kAskRingEvery = 32;

}  // namespace

void Mesh::add(std::unique_ptr<Endpoint> endpoint, const std::vector<PeerId>& peers) {
  for (const PeerId peer : peers) routes_[peer] = endpoint.get();
  ends_.push_back(std::move(endpoint));
}

Endpoint& Mesh::end_of(PeerId peer) const {
  const auto it = routes_.find(peer);
  if (it == routes_.end()) throw Error(ErrorKind::usage, "no way to reach rank " + std::to_string(peer));
  return *it->second;
}

bool Mesh::peers_map_arenas() const noexcept {
  return std::any_of(ends_.begin(), ends_.end(), [](const auto& end) { return end->peers_map_arenas(); });
}

void Mesh::register_arena(const Arena& arena) {
  for (const auto& end : ends_) end->register_arena(arena);
}

void Mesh::forget_arena(uint32_t id) {
  for (const auto& end : ends_) end->forget_arena(id);
}

void Mesh::abandon(PeerId peer) {
  lost_.insert(peer);
  if (const auto route = routes_.find(peer); route != routes_.end()) route->second->abandon(peer);
}

void Mesh::give_up(PeerId peer) {
  if (const auto route = routes_.find(peer); route != routes_.end()) route->second->give_up(peer);
}

// What the ring knows that no transport reports.
bool Mesh::next_death(Incoming& incoming) {
  since_ring_ = 0;
  while (const auto dead = ring_ ? ring_->next_dead() : std::nullopt) {
    const auto route = routes_.find(*dead);
    if (route != routes_.end() && route->second->capabilities(*dead).detects_loss) continue;
    if (!lost_.insert(*dead).second) continue;
    incoming = PeerLost{*dead, "its process ended", true};
    return true;
  }
  return false;
}

bool Mesh::poll(Incoming& incoming) {
  // The ring costs system calls, so it is not asked before every message; but a flood of them must not hide a death.
  if (++since_ring_ >= kAskRingEvery && next_death(incoming)) return true;
  for (size_t tried = 0; tried < ends_.size(); ++tried) {
    Endpoint& end = *ends_[turn_];
    turn_ = (turn_ + 1) % ends_.size();
    while (end.poll(incoming)) {
      const auto* lost = std::get_if<PeerLost>(&incoming);
      if (lost == nullptr) return true;
      const auto route = routes_.find(lost->peer);
      if (route == routes_.end()) continue;
      // The peer's own transport reads its last words first; another one only speaks for it where it cannot tell.
      if (route->second != &end && route->second->capabilities(lost->peer).detects_loss) continue;
      if (lost_.insert(lost->peer).second) return true;
    }
  }
  return next_death(incoming);
}

void Mesh::collect_fds(std::vector<pollfd>& fds) const {
  for (const auto& end : ends_) end->collect_fds(fds);
  if (ring_) ring_->collect_fds(fds);
}

bool Mesh::flush(Nanoseconds timeout_ns) {
  const MonotonicClock clock;
  const Nanoseconds deadline = clock.now() + timeout_ns;
  bool all = true;
  for (const auto& end : ends_) all = end->flush(std::max<Nanoseconds>(deadline - clock.now(), 0)) && all;
  return all;
}

}  // namespace penstock
