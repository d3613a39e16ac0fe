// Several transports behind one Endpoint: each peer is reached by the one chosen for it.
//
//   Mesh mesh;
//   mesh.add(std::move(mpi_endpoint), {4, 5, 6, 7});   // other nodes
//   mesh.add(std::move(shm_endpoint), {1, 2, 3});      // this node
//
// A loss is reported once per peer: by the transport that reaches it, or by any where that one cannot tell, or the ring of
// the node, which is asked when there is nothing else, and every 32 events where there always is.
// Fair: poll() takes turns among the transports. Ownership: of its endpoints. Thread-safety, failure: as for any
// Endpoint; Error(usage) for a rank that no transport was added for.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <vector>

#include "transport/node_ring.h"
#include "transport/transport.h"

namespace penstock {

class Mesh final : public Endpoint {
 public:
  void add(std::unique_ptr<Endpoint> endpoint, const std::vector<PeerId>& peers);
  // Reports deaths of ranks whose own transport does not, and of those of this node that nothing connects to this one.
  void watch_node(std::shared_ptr<NodeRing> ring) { ring_ = std::move(ring); }

  Capabilities capabilities(PeerId peer) const override { return end_of(peer).capabilities(peer); }
  void send(PeerId peer, Message message) override { end_of(peer).send(peer, std::move(message)); }
  void send_with(PeerId peer, Message message, int fd) override {
    end_of(peer).send_with(peer, std::move(message), fd);
  }
  void send_chunk(PeerId peer, Message envelope, ChunkBufferRef chunk_buffer, size_t bytes) override {
    end_of(peer).send_chunk(peer, std::move(envelope), chunk_buffer, bytes);
  }
  void release(PeerId peer, uint64_t token) override { end_of(peer).release(peer, token); }
  bool peers_map_arenas() const noexcept override;
  void register_arena(const Arena& arena) override;
  void forget_arena(uint32_t id) override;
  void abandon(PeerId peer) override;
  void give_up(PeerId peer) override;
  bool poll(Incoming& incoming) override;
  void collect_fds(std::vector<pollfd>& fds) const override;
  bool flush(Nanoseconds timeout_ns) override;

 private:
  Endpoint& end_of(PeerId peer) const;
  bool next_death(Incoming& incoming);

  std::vector<std::unique_ptr<Endpoint>> ends_;
  std::shared_ptr<NodeRing> ring_;
  std::map<PeerId, Endpoint*> routes_;
  std::set<PeerId> lost_;
  size_t turn_ = 0;
  int since_ring_ = 0;  // calls of poll() since the ring was asked
};

}  // namespace penstock
