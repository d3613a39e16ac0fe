// The ranks' network in a simulated world: Endpoints whose messages and chunks take time, wait where a link is cut, and
// end with their rank.
//
//   SimNetwork network(loop, random, {.ranks = 5, .in_place = true});
//   network.on_arrival(rank, [&] { turn(rank); });
//   auto endpoint = network.endpoint(rank);
//   network.cut(2, 0, until);  network.kill(3, {.seen_after_ns = 20 * kMillisecond});
//
// What it keeps of transport.h: messages of a pair arrive in order, and so do its chunks; a message may overtake chunks.
//   With `in_place` chunks are read in the sender's arena, as over shm, else copied, as over MPI.
// What it checks of its users (violations()): that nobody writes into a chunk buffer between send_chunk() and its
//   return, and that no arena is forgotten while a chunk buffer of it is published.
// Thread-safety: none. Ownership: endpoints must not outlive the network.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/simulate/event_loop.h"
#include "runtime/simulate/seeded_random.h"
#include "transport/transport.h"

namespace penstock {

class SimNetwork {
 public:
  struct Spec {
    int ranks = 2;
    bool in_place = true;
    Nanoseconds delay_ns = 100 * kMicrosecond;  // of most messages, at most
    int slow_percent = 2;                       // of them take so many times as long:
    int slow_factor = 100;
    int payload_percent = 50;  // of the damaged chunks, where they are copied; else it is the envelope
    // Hears of everything that arrives: ranks and what, messages as `describe` has it.
    std::function<void(const std::string&)> log;
    std::function<std::string(const Message&)> describe;
  };
  SimNetwork(EventLoop& loop, SeededRandom& random, Spec spec);
  ~SimNetwork();

  std::unique_ptr<Endpoint> endpoint(PeerId rank);
  void on_arrival(PeerId rank, std::function<void()> call);

  // What is sent from one to the other arrives after `until` at the earliest.
  void cut(PeerId from, PeerId to, Nanoseconds until);
  // So many of the next messages and chunks that it sends arrive with a bit flipped: in the envelope or, where chunks
  // are copied, in the payload.
  void damage(PeerId from, int messages, int chunks);
  struct Death {
    std::optional<Nanoseconds> seen_after_ns;  // by the others' transports; nothing: never, as where a host is cut off
  };
  void kill(PeerId rank, const Death& death);
  bool alive(PeerId rank) const;
  const std::vector<std::string>& violations() const { return violations_; }

 private:
  friend class SimEndpoint;
  struct Rank {
    bool dead = false;
    std::function<void()> on_arrival;
    std::deque<Incoming> inbox;
    std::map<uint32_t, const Arena*> arenas;
    std::set<PeerId> abandoned;
    std::set<PeerId> lost;  // it was told so
    int messages_to_damage = 0;
    int chunks_to_damage = 0;
  };
  struct Link {
    Nanoseconds open_at = 0;
    Nanoseconds last_message = 0;
    Nanoseconds last_chunk = 0;
  };
  struct Published {
    PeerId from = 0;
    PeerId to = 0;
    ChunkBufferRef buffer;
    std::span<const std::byte> bytes;
    uint64_t hash = 0;  // of `bytes`, in place
    std::vector<std::byte> copy;
  };

  Nanoseconds delay();
  void flip_a_bit(std::vector<std::byte>& bytes);
  Nanoseconds arrival(PeerId from, PeerId to, Nanoseconds Link::*last);
  void deliver(PeerId from, PeerId to, Nanoseconds when, Incoming incoming);
  void send(PeerId from, PeerId to, Message message);
  void send_chunk(PeerId from, PeerId to, Message envelope, ChunkBufferRef buffer, size_t bytes);
  void release(PeerId rank, uint64_t token);
  void forget_arena(PeerId rank, uint32_t id);
  void returned(const Published& chunk, Nanoseconds when);

  EventLoop& loop_;
  SeededRandom& random_;
  Spec spec_;
  std::vector<Rank> ranks_;
  std::map<std::pair<PeerId, PeerId>, Link> links_;
  std::map<uint64_t, Published> published_;
  uint64_t next_token_ = 1;
  std::vector<std::string> violations_;
};

}  // namespace penstock
