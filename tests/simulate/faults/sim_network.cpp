#include "tests/simulate/faults/sim_network.h"

#include <utility>

#include "runtime/base/hash.h"

namespace penstock {

class SimEndpoint final : public Endpoint {
 public:
  SimEndpoint(SimNetwork& network, PeerId rank) : network_(network), rank_(rank) {}

  Capabilities capabilities(PeerId) const override {
    return {"simulated", true, false, network_.spec_.in_place ? 0 : network_.spec_.delay_ns};
  }
  void send(PeerId peer, Message message) override { network_.send(rank_, peer, std::move(message)); }
  void send_chunk(PeerId peer, Message envelope, ChunkBufferRef buffer, size_t bytes) override {
    network_.send_chunk(rank_, peer, std::move(envelope), buffer, bytes);
  }
  void release(PeerId, uint64_t token) override { network_.release(rank_, token); }
  bool peers_map_arenas() const noexcept override { return false; }
  void register_arena(const Arena& arena) override { mine().arenas[arena.id] = &arena; }
  void forget_arena(uint32_t id) override { network_.forget_arena(rank_, id); }
  void abandon(PeerId peer) override { mine().abandoned.insert(peer); }
  bool poll(Incoming& incoming) override {
    if (mine().inbox.empty()) return false;
    incoming = std::move(mine().inbox.front());
    mine().inbox.pop_front();
    return true;
  }
  void collect_fds(std::vector<pollfd>&) const override {}
  bool flush(Nanoseconds) override { return true; }

 private:
  SimNetwork::Rank& mine() { return network_.ranks_[static_cast<size_t>(rank_)]; }

  SimNetwork& network_;
  PeerId rank_;
};

SimNetwork::SimNetwork(EventLoop& loop, SeededRandom& random, Spec spec)
    : loop_(loop), random_(random), spec_(std::move(spec)), ranks_(static_cast<size_t>(spec_.ranks)) {}
SimNetwork::~SimNetwork() = default;

std::unique_ptr<Endpoint> SimNetwork::endpoint(PeerId rank) {
  return std::make_unique<SimEndpoint>(*this, rank);
}
void SimNetwork::on_arrival(PeerId rank, std::function<void()> call) {
  ranks_[static_cast<size_t>(rank)].on_arrival = std::move(call);
}
bool SimNetwork::alive(PeerId rank) const {
  return !ranks_[static_cast<size_t>(rank)].dead;
}

void SimNetwork::cut(PeerId from, PeerId to, Nanoseconds until) {
  Link& link = links_[{from, to}];
  link.open_at = std::max(link.open_at, until);
}

void SimNetwork::damage(PeerId from, int messages, int chunks) {
  Rank& rank = ranks_[static_cast<size_t>(from)];
  rank.messages_to_damage += messages;
  rank.chunks_to_damage += chunks;
}
void SimNetwork::flip_a_bit(std::vector<std::byte>& bytes) {
  const int64_t bit = random_.below(8 * std::ssize(bytes));
  bytes[static_cast<size_t>(bit / 8)] ^= std::byte{1} << (bit % 8);
}

void SimNetwork::kill(PeerId rank, const Death& death) {
  Rank& dying = ranks_[static_cast<size_t>(rank)];
  if (dying.dead) return;
  dying.dead = true;
  dying.inbox.clear();
  if (!death.seen_after_ns) return;
  for (PeerId other = 0; other < std::ssize(ranks_); ++other) {
    if (other == rank) continue;
    loop_.after(*death.seen_after_ns + delay(), [this, rank, other] {
      Rank& to = ranks_[static_cast<size_t>(other)];
      if (to.dead || !to.lost.insert(rank).second) return;
      to.inbox.push_back(PeerLost{rank, "its process ended", true});
      if (spec_.log) spec_.log("lost " + std::to_string(rank) + " at " + std::to_string(other));
      to.on_arrival();
    });
  }
}

Nanoseconds SimNetwork::delay() {
  const Nanoseconds usual = random_.between(1, spec_.delay_ns);
  return random_.chance(spec_.slow_percent) ? usual * spec_.slow_factor : usual;
}

Nanoseconds SimNetwork::arrival(PeerId from, PeerId to, Nanoseconds Link::*last) {
  Link& link = links_[{from, to}];
  const Nanoseconds when = std::max({loop_.now() + delay(), link.open_at, link.*last});
  return link.*last = when;
}

void SimNetwork::deliver(PeerId from, PeerId to, Nanoseconds when, Incoming incoming) {
  loop_.at(when, [this, from, to, incoming = std::make_shared<Incoming>(std::move(incoming))] {
    Rank& rank = ranks_[static_cast<size_t>(to)];
    if (rank.dead || rank.abandoned.count(from) != 0) return;
    if (spec_.log) {
      spec_.log(std::to_string(from) + ">" + std::to_string(to) + " " + std::to_string(incoming->index()) +
                (std::holds_alternative<MessageArrived>(*incoming)
                     ? " " + spec_.describe(std::get<MessageArrived>(*incoming).message)
                     : ""));
    }
    rank.inbox.push_back(std::move(*incoming));
    rank.on_arrival();
  });
}

void SimNetwork::send(PeerId from, PeerId to, Message message) {
  Rank& rank = ranks_[static_cast<size_t>(from)];
  if (!alive(to) && rank.lost.count(to) != 0) return;
  if (rank.messages_to_damage > 0) {
    --rank.messages_to_damage;
    flip_a_bit(message);
  }
  deliver(from, to, arrival(from, to, &Link::last_message), MessageArrived{from, std::move(message), {}});
}

void SimNetwork::send_chunk(PeerId from, PeerId to, Message envelope, ChunkBufferRef buffer, size_t bytes) {
  const Arena& arena = *ranks_[static_cast<size_t>(from)].arenas.at(buffer.arena);
  const uint64_t token = next_token_++;
  Published& chunk = published_[token];
  chunk = {from, to, buffer, {arena.chunk_buffer(buffer.index), bytes}, 0, {}};
  const Nanoseconds when = arrival(from, to, &Link::last_chunk);
  int& to_damage = ranks_[static_cast<size_t>(from)].chunks_to_damage;
  const bool damaged = to_damage > 0 && to_damage-- > 0;
  const bool in_payload = damaged && !spec_.in_place && bytes > 0 && random_.chance(spec_.payload_percent);
  if (damaged && !in_payload) flip_a_bit(envelope);
  if (spec_.in_place) {
    chunk.hash = hash128(chunk.bytes).low;
  } else {
    chunk.copy.assign(chunk.bytes.begin(), chunk.bytes.end());
    if (in_payload) flip_a_bit(chunk.copy);
    chunk.bytes = chunk.copy;
    returned(chunk, when);
  }
  deliver(from, to, when, ChunkArrived{from, std::move(envelope), chunk.bytes, token});
}

void SimNetwork::returned(const Published& chunk, Nanoseconds when) {
  deliver(chunk.to, chunk.from, when, ChunkBufferReturned{chunk.to, chunk.buffer});
}

void SimNetwork::release(PeerId rank, uint64_t token) {
  const auto it = published_.find(token);
  if (it == published_.end()) return;
  const Published& chunk = it->second;
  if (chunk.to != rank) violations_.push_back("rank " + std::to_string(rank) + " released another rank's chunk");
  if (spec_.in_place) {
    if (hash128(chunk.bytes).low != chunk.hash) {
      violations_.push_back("rank " + std::to_string(chunk.from) + " wrote into a published chunk buffer");
    }
    returned(chunk, arrival(rank, chunk.from, &Link::last_message));
  }
  published_.erase(it);
}

void SimNetwork::forget_arena(PeerId rank, uint32_t id) {
  for (const auto& [token, chunk] : published_) {
    if (spec_.in_place && chunk.from == rank && chunk.buffer.arena == id) {
      violations_.push_back("rank " + std::to_string(rank) + " forgot an arena with published chunk buffers");
    }
  }
  ranks_[static_cast<size_t>(rank)].arenas.erase(id);
}

}  // namespace penstock
