// A receiver's registry of the memory that loaders' GPUs export: who offers what, which clients have it open, and buffer
// ranges of it.
//
//   ExportRegistry exports(messenger);
//   exports.offered(loader, export_offered, std::move(fd));  // a loader's word, with the memory's descriptor
//   // it reads images there: it is shown what there is, and will be
//   exports.read_by(connection, program);
//   // it has one open, or no more; the loader is notified of it
//   exports.used(connection, client_export_used);
//   // nothing: the chunk buffer has the bytes
//   if (auto exported = exports.keep(connection, loader, buffer_range, …)) …
//   exports.give_back(loader, buffer_range, exported);      // read; or not wanted, and then of no exported memory
//   exports.read_till_end(connection, loader, buffer_range, exported); // of a batch that it held when it hung up
//   exports.connection_gone(connection);  exports.program_ended(program);  exports.loader_lost(loader);
//
// The states of exported memory and one client:
//
//   offered --ClientExport, with the descriptor--> shown --ClientExportUsed(true)--> used --(false)--> shown
//
// Linked memory (gpu/gpu_link.h) comes without a descriptor. What client and loader say to each other about it passes
//   through here: who joins, whether that went well, which buffer ranges are wanted. It does not outlive its loader:
//   what batch buffers have there is gone (readable() says so), and clients are notified at once.
//
// Invariant: a loader sends buffer ranges for a client only while that client has the exported memory open, as far as
//   it knows. What comes all the same, after a client has changed its mind, goes by the host; or, where it is nowhere
//   else, to the client.
// A connection that ends without a goodbye says nothing of what its program still reads, which lives on where it hung
//   up, or was hung up on: what it held goes back when the program has ended. By links nothing is read then.
// The descriptor is kept for clients that come later, and closed when the loader is lost, as the GPU's memory is taken
//   until the last one is. What clients have open of a lost loader stays readable (gpu/gpu.h, Sharing): they are told
//   to let go of it behind the last batch that has images there.
// Thread-safety: the receiver's event loop alone. Ownership: the descriptors; `messenger` must outlive it.
// Failure: Error(peer_lost) for a buffer range of exported memory that the loader did not offer, or that does not lie
//   within it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>

#include "runtime/base/memory.h"
#include "runtime/protocol/chunk.h"
#include "runtime/protocol/client_protocol.h"
#include "runtime/protocol/messages.h"
#include "runtime/receiver/receiver_messenger.h"

namespace penstock {

class ExportRegistry {
 public:
  explicit ExportRegistry(ReceiverMessenger& messenger) : messenger_(messenger) {}

  void offered(PeerId loader, const ExportOffered& message, UniqueFd fd);
  void opened(PeerId loader, const LinkOpened& message) const;
  void loader_lost(PeerId loader);
  // It has been given up, and may live: what it exports by descriptors stays as it is.
  void links_lost(PeerId loader);

  void read_by(int connection, int64_t program);
  void used(int connection, const ClientExportUsed& message);
  void asked(int connection, const ClientLinkAsked& message) const;
  void asked(int connection, const ClientBufferRangesAsked& message) const;
  void connection_gone(int connection);
  void program_ended(int64_t program);

  // The exported memory's number, where the client has it open, or had, and needs it; it is then counted until it is
  // given back.
  std::optional<int32_t> keep(int connection, PeerId loader, const ChunkBufferRange& buffer_range, bool nowhere_else);
  void give_back(PeerId loader, const ChunkBufferRange& buffer_range, std::optional<int32_t> exported);
  void read_till_end(int connection, PeerId loader, const ChunkBufferRange& buffer_range, int32_t exported);
  // False: it was linked to a loader that is lost.
  bool readable(int32_t exported) const;
  // The loader lives, and its memory is linked, but not to whom its buffer range was for.
  bool link_ended(PeerId loader, const ChunkBufferRange& buffer_range) const;

 private:
  struct Exported {
    PeerId loader = 0;
    int32_t gpu = 0;  // of the loader's
    uint64_t bytes = 0;
    UniqueFd fd;  // empty: linked, or the loader is lost
    bool linked = false;
    bool lost = false;  // its loader is, or offers another one
    std::set<int> used_by;
    int64_t kept = 0;  // buffer ranges
  };
  using Exports = std::map<int32_t, Exported>;  // by number, none of which is used twice
  Exports::iterator find(PeerId loader, int32_t gpu);
  const Exported* linked(int connection, int32_t number) const;
  void lose(Exports::iterator exported);
  void show(int connection, int32_t number, const Exported& exported) const;
  void end_if_lost(Exports::iterator exported);

  ReceiverMessenger& messenger_;
  Exports exports_;
  std::map<int, int64_t> readers_;  // connections, and their programs
  struct Held {
    PeerId loader = 0;
    ChunkBufferRange buffer_range;
    int32_t exported = 0;
  };
  std::set<PeerId> gone_;              // loaders that were lost or given up
  std::multimap<int64_t, Held> held_;  // by programs whose connections have ended
  int32_t next_ = 1;
};

}  // namespace penstock
