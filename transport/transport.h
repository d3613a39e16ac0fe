// Transport: how messages and chunks get from one rank to another.
//
//   std::unique_ptr<Endpoint> end = ...;                 // inproc, shm or mpi, or a Mesh of them
//   end->send(peer, message);                            // small, ordered per peer, never blocks
//   end->send_with(peer, message, fd);                   // the same, with a descriptor, where capabilities() say so
//   end->send_chunk(peer, envelope, cell);               // the cell stays ours to keep still until CellReturned
//   while (end->poll(incoming)) std::visit(..., incoming);
//
// Order: messages to one peer arrive in the order of sending, and so do chunks; a message may overtake a chunk. Where
//   descriptors are carried, nothing overtakes anything.
//
// Purpose: a small interface that every way of moving bytes fits behind, so that loaders and ports are written once.
//   Control messages are opaque bytes. A chunk is an envelope (opaque bytes: header and sample records) plus a payload
//   that lies in a cell.
//
// A cell, memory of one chunk at a loader, has one writer at a time:
//
//     free --(lease)--> filling --(send_chunk)--> published --(CellReturned)--> free
//            loader writes        nobody writes; the receiver reads
//
//   Invariant: between send_chunk and CellReturned the sender does not touch the cell. CellReturned comes when the
//   receiver released the chunk (inproc, shm: it reads the cell in place) or when the bytes have left (mpi: the
//   receiver reads a staging cell of its own), or when the receiver is gone.
// Receiving: ChunkArrived::payload stays valid until release(token). It is never the final place of the bytes: the port
//   checks the lease, then copies, so a late or repeated chunk can do no harm.
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

// Cells of one size in one piece of memory, shared where peers_map_arenas(). Owned by the loader; registered with its
// endpoint, which shows it to peers that can read it in place. The endpoint keeps its address: it stays where it is, until the endpoint has gone or was
// told to forget it.
struct Arena {
  uint32_t id = 0;  // unique at this rank
  SharedMemory memory;
  size_t cell_bytes = 0;

  std::byte* cell(uint32_t index) const noexcept { return memory.data() + index * cell_bytes; }
  bool holds(uint32_t index, size_t bytes) const noexcept {
    return bytes <= cell_bytes && cell_bytes <= memory.size() && index < memory.size() / cell_bytes;
  }
};

struct CellRef {
  uint32_t arena = 0;
  uint32_t cell = 0;

  friend bool operator==(const CellRef&, const CellRef&) = default;
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
struct CellReturned {
  PeerId peer = 0;
  CellRef cell;
};
struct PeerLost {
  PeerId peer = 0;
  std::string reason;
};
using Incoming = std::variant<MessageArrived, ChunkArrived, CellReturned, PeerLost>;

struct Capabilities {
  const char* name = "";
  bool zero_copy = false;      // the receiver reads the sender's cell in place
  bool detects_loss = false;   // PeerLost comes by itself, within a second
  bool carries_descriptors = false;  // send_with() works
  Nanoseconds delay_ns = 0;    // how long a message lies on its way, on average, while there is traffic; 0: no time
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
  // `bytes` of the cell, from its beginning, are the payload.
  virtual void send_chunk(PeerId peer, Message envelope, CellRef cell, size_t bytes) = 0;
  virtual void release(PeerId peer, uint64_t token) = 0;  // again: changes nothing
  // Whether other processes map what is registered: its memory must then have a descriptor.
  virtual bool peers_map_arenas() const noexcept = 0;
  virtual void register_arena(const Arena& arena) = 0;
  // None of its cells is published. Whoever has mapped it lets go; its number is not used again.
  virtual void forget_arena(uint32_t id) = 0;

  // One event, if there is one; never blocks.
  virtual bool poll(Incoming& incoming) = 0;
  // What to wait for before calling poll() again.
  virtual void collect_fds(std::vector<pollfd>& fds) const = 0;
  // Waits until everything sent has left this rank. False when `timeout_ns` passed first.
  virtual bool flush(Nanoseconds timeout_ns) = 0;
};

}  // namespace penstock
