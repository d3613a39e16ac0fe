// Transport between processes of one node: Unix-domain sockets for messages, shared memory for chunks.
//
//   ShmOptions options{.job = "ab12cd", .token = token, .self = 2, .node_peers = {0, 1}};
//   ShmEndpoint end(options);      // listens
//   end.connect();                 // once all listen: calls the lower ones
//   end.wait_for_calls();          // until the higher ones have called; or poll(), which answers calls too
//
// A loader's arena is a memfd handed over with SCM_RIGHTS before its first chunk; the receiver maps it read-only and
// reads the chunk buffer in place, so a chunk costs one small packet each way and no copy of its payload.
// Loss: a hang-up of the socket is the death of the peer (the kernel closes it whatever the cause), reported at once. So this
//   end never hangs up while it lives: a peer to which the kernel lets nothing through, for want of memory, is only silent.
// Thread-safety: one thread. Ownership: of its sockets and of what it maps; registered arenas are the caller's, and must live
//   until they are forgotten. Failure: a peer that sends nonsense is PeerDamaged; Error(usage) for a rank that is no peer.
// Trust: the other end must be the same user and know the job's token; what it announces is checked against its arena.
//
// Packets, each beginning with a kind byte (integers little-endian):
//   1 hello    i32 rank, text token                            the first packet of who connected
//   2 message  the bytes (+ fd, with those that have one)
//   3 arena    u32 id, u64 bytes, u64 chunk_buffer_bytes  + fd   before the arena's first chunk
//   4 chunk    u32 arena, u32 chunk buffer, u64 bytes, envelope
//   5 release  u32 arena, u32 chunk buffer
//   6 forget   u32 arena                                       its chunk buffers are all released: unmap it
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "transport/transport.h"
#include "transport/unix_socket.h"

namespace penstock {

struct ShmOptions {
  std::string job;    // distinguishes jobs on one node: part of the socket's name
  std::string token;  // secret of the job
  PeerId self = 0;
  std::vector<PeerId> node_peers;  // ranks of this node that this one has to do with
  Nanoseconds connect_timeout_ns = 30 * kSecond;
  AskedToEnd asked_to_end = {};  // looked at while the others are waited for: Error(runtime)
};

class ShmEndpoint final : public Endpoint {
 public:
  explicit ShmEndpoint(const ShmOptions& options);
  ~ShmEndpoint() override;

  // Apart from the constructor so that all can listen before anyone connects. Calls are answered while it waits, so that
  // hundreds of ranks may call each other at once. Error(peer_lost) names who is still missed at the time limit.
  void connect();
  void wait_for_calls();

  Capabilities capabilities(PeerId) const override { return {"shm", true, true}; }
  void send(PeerId peer, Message message) override { send_with(peer, std::move(message), -1); }
  void send_with(PeerId peer, Message message, int fd) override;
  void send_chunk(PeerId peer, Message envelope, ChunkBufferRef chunk_buffer, size_t bytes) override;
  void release(PeerId peer, uint64_t token) override;
  bool peers_map_arenas() const noexcept override { return true; }
  void register_arena(const Arena& arena) override;
  void forget_arena(uint32_t id) override;
  void abandon(PeerId peer) override;
  void give_up(PeerId peer) override { silent_.insert(peer); }
  bool poll(Incoming& incoming) override;
  void collect_fds(std::vector<pollfd>& fds) const override;
  bool flush(Nanoseconds timeout_ns) override;

 private:
  struct Peer;
  struct Waiting {
    Message message;  // or a chunk's envelope
    ChunkBufferRef chunk_buffer;
    size_t bytes = 0;
    bool is_chunk = false;
    UniqueFd fd = {};  // a message's
  };
  void wait_for_peer(PeerId peer, Waiting item);
  void meet(const std::function<bool(PeerId)>& may_be_missed);
  bool try_to_call(PeerId peer);
  std::vector<PeerId> missed() const;  // that have not called, or not been called
  void wait_for_a_call(int timeout_ms) const;
  void collect_callers(std::vector<pollfd>& fds) const;
  Peer* find(PeerId peer);
  bool handle(PeerId peer, Packet packet, Incoming& incoming);
  void accept_waiting();
  PeerId read_hello(const Packet& packet) const;

  ShmOptions options_;
  UniqueFd listening_;
  std::vector<PacketSocket> strangers_;  // accepted, hello not read yet
  std::map<PeerId, std::unique_ptr<Peer>> peers_;
  std::map<PeerId, std::vector<Waiting>> waiting_;  // sent before the peer connected
  std::map<uint32_t, const Arena*> arenas_;
  std::set<PeerId> silent_;      // given up or dead, and not heard since
  PeerId served_ = -1;           // whose turn poll() took last
  std::vector<Incoming> ready_;  // ChunkBufferReturned and PeerLost that arose inside a call
};

// "penstock/1000/ab12cd/r3": user, job, rank.
std::string shm_socket_name(const std::string& job, PeerId rank);

}  // namespace penstock
