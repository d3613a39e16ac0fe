// Transport: how messages and chunks get from one rank to another.
//
//   std::unique_ptr<Endpoint> end = ...;                 // inproc, shm or mpi, or a Mesh of them
//   end->send(peer, message);                            // small, ordered per peer, never blocks
//   end->send_with(peer, message, fd);                   // the same, with a descriptor, where capabilities() say so
//   // the chunk buffer stays ours to keep still until ChunkBufferReturned
//   end->send_chunk(peer, envelope, chunk_buffer, bytes);   // so many of it, from its beginning
//   while (end->poll(incoming)) std::visit(..., incoming);
//
// Order: messages to one peer arrive in the order of sending, and so do chunks; a message may overtake a chunk. Where
//   descriptors are carried, nothing overtakes anything.
//
// Purpose: a small interface that every way of moving bytes fits behind, so that loaders and receivers are written
//   once. Control messages are opaque bytes. A chunk is an envelope (opaque bytes: header and sample records) plus a
//   payload that lies in a chunk buffer.
//
// A chunk buffer, memory of one chunk at a loader, has one writer at a time:
//
//     free --(lease)--> filling --(send_chunk)--> published --(ChunkBufferReturned)--> free
//            loader writes        nobody writes; the receiver reads
//
//   Invariant: between send_chunk and ChunkBufferReturned the sender does not touch the chunk buffer.
//   ChunkBufferReturned comes when the receiver released the chunk (inproc, shm: it reads the chunk buffer in place) or
//   when the bytes have left (mpi: the receiver reads a staging buffer of its own), or when the receiver is gone.
// Receiving: ChunkArrived::payload stays valid until release(token). It is never the final place of the bytes: the
//   receiver checks the lease, then copies, so a late or repeated chunk can do no harm.
// Thread-safety: an Endpoint belongs to one thread, the rank's event loop; what runs behind it (a progress thread,
//   other ranks' threads) is its own affair.
// Failure: sending to a lost peer is silently dropped (its loss is or will be reported by PeerLost, once per peer);
//   everything else is an Error naming the peer.
#pragma once

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/error.h"
#include "runtime/base/memory.h"

namespace penstock {

using PeerId = int32_t;  // rank in the job, loaders and trainers alike
using Message = std::vector<std::byte>;

// Chunk buffers of one size in one piece of memory, shared where peers_map_arenas(). Owned by the loader; registered
// with its endpoint, which shows it to peers that can read it in place. The endpoint keeps its address: it stays where
// it is, until the endpoint has gone or was told to forget it.
struct Arena {
  uint32_t id = 0;  // unique at this rank
  SharedMemory memory;
  size_t chunk_buffer_bytes = 0;

  std::byte* chunk_buffer(uint32_t index) const noexcept { return memory.data() + index * chunk_buffer_bytes; }
  bool holds(uint32_t index, size_t bytes) const noexcept {
    return bytes <= chunk_buffer_bytes && chunk_buffer_bytes <= memory.size() &&
           index < memory.size() / chunk_buffer_bytes;
  }
};

struct ChunkBufferRef {
  uint32_t arena = 0;
  uint32_t index = 0;

  friend bool operator==(const ChunkBufferRef&, const ChunkBufferRef&) = default;
};

struct MessageArrived {
  PeerId peer = 0;
  Message message;
  UniqueFd fd = {};  // that came with it; empty: none did
};
struct ChunkArrived {
  PeerId peer = 0;
  Message envelope;
  std::span<const std::byte> payload;
  uint64_t token = 0;  // for release()
};
struct ChunkBufferReturned {
  PeerId peer = 0;
  ChunkBufferRef chunk_buffer;
};
struct PeerLost {
  PeerId peer = 0;
  std::string reason;
  bool dead = false;  // its process has ended; otherwise it may only be silent, and come again
};
// Something that the peer sent cannot be understood, and is lost; what comes after it can be.
struct PeerDamaged {
  PeerId peer = 0;
  std::string reason;
};
using Incoming = std::variant<MessageArrived, ChunkArrived, ChunkBufferReturned, PeerLost, PeerDamaged>;

struct Capabilities {
  const char* name = "";
  bool detects_loss = false;         // PeerLost comes by itself, within a second
  bool carries_descriptors = false;  // send_with() works
  Nanoseconds delay_ns = 0;  // how long a message lies on its way, on average, while there is traffic; 0: no time
};

class Endpoint {
 public:
  virtual ~Endpoint() = default;

  virtual Capabilities capabilities(PeerId peer) const = 0;
  virtual void send(PeerId peer, Message message) = 0;
  // `fd` stays the caller's; the peer gets another for the same. Error(usage) where descriptors are not carried.
  virtual void send_with(PeerId peer, Message /*message*/, int /*fd*/) {
    throw Error(ErrorKind::usage, "no way to hand a descriptor to rank " + std::to_string(peer));
  }
  // `bytes` of the chunk buffer, from its beginning, are the payload.
  virtual void send_chunk(PeerId peer, Message envelope, ChunkBufferRef chunk_buffer, size_t bytes) = 0;
  virtual void release(PeerId peer, uint64_t token) = 0;  // again: changes nothing
  // Whether other processes map what is registered: its memory must then have a descriptor.
  virtual bool peers_map_arenas() const noexcept = 0;
  virtual void register_arena(const Arena& arena) = 0;
  // None of its chunk buffers is published. Whoever has mapped it lets go; its number is not used again.
  virtual void forget_arena(uint32_t id) = 0;

  // The peer is known to be dead: what is sent to it vanishes, nothing that is under way to or from it is waited for
  // (over mpi its buffers stay where they are: MPI may still use them), and its memory is unmapped. No chunk of it may be
  // unreleased. Again: changes nothing.
  virtual void abandon(PeerId /*peer*/) {}
  // The peer is silent, and may come again: until something comes from it, what is under way to or from it is not waited
  // for, neither by flush() nor by a thread that polls. It is not lost, and its buffers stay in use. Again: changes nothing.
  virtual void give_up(PeerId /*peer*/) {}

  // One event, if there is one; never blocks.
  virtual bool poll(Incoming& incoming) = 0;
  // What to wait for before calling poll() again.
  virtual void collect_fds(std::vector<pollfd>& fds) const = 0;
  // Waits until everything sent has left this rank. False when `timeout_ns` passed first.
  virtual bool flush(Nanoseconds timeout_ns) = 0;
};

}  // namespace penstock
