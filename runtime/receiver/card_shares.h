// A port's book of the memory that loaders' cards share: who offers what, which clients have it open, and pieces of it.
//
//   CardShares shares(messenger);
//   shares.offered(loader, share_offered, std::move(fd));   // a loader's word, with the memory's descriptor
//   shares.read_by(connection, program);                    // it reads images there: it is shown what there is, and will be
//   shares.used(connection, client_share_used);             // it has one open, or no more; the loader hears of it
//   if (auto share = shares.keep(connection, loader, piece, …)) … // else the chunk's cell has the bytes
//   shares.give_back(loader, piece, share);                 // read; or not wanted, and then of no share
//   shares.read_till_end(connection, loader, piece, share); // of a batch that it held when it hung up
//   shares.connection_gone(connection);  shares.program_ended(program);  shares.loader_lost(loader);
//
// Of one share and one client:
//
//   offered --ClientShare, with the descriptor--> shown --ClientShareUsed(true)--> used --(false)--> shown
//
// Linked memory (gpu/card_link.h) comes without a descriptor. What client and loader say to each other about it passes
//   through here: who joins, whether that went well, which pieces are wanted. It does not outlive its loader: what
//   slots have there is gone (readable() says so), and clients are told at once.
//
// Invariant: a loader sends pieces for a client only while that client has the share open, as far as it knows. What
//   comes all the same, after a client has changed its mind, goes by the host; or, where it is nowhere else, to the
//   client.
// A connection that ends without a goodbye says nothing of what its program still reads, which lives on where it hung
//   up, or was hung up on: what it held goes back when the program has ended. By links nothing is read then.
// The descriptor is kept for clients that come later, and closed when the loader is lost, as the card's memory is taken
//   until the last one is. What clients have open of a lost loader stays readable (gpu/card.h, Sharing): they are told
//   to let go of it behind the last batch that has images there.
// Thread-safety: the port's event loop alone. Ownership: the descriptors; `messenger` must outlive it.
// Failure: Error(peer_lost) for a piece of a share that the loader did not offer, or that does not lie within it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>

#include "runtime/base/memory.h"
#include "runtime/protocol/chunk.h"
#include "runtime/protocol/client_protocol.h"
#include "runtime/protocol/messages.h"
#include "runtime/receiver/port_messenger.h"

namespace penstock {

class CardShares {
 public:
  explicit CardShares(PortMessenger& messenger) : messenger_(messenger) {}

  void offered(PeerId loader, const ShareOffered& message, UniqueFd fd);
  void opened(PeerId loader, const LinkOpened& message) const;
  void loader_lost(PeerId loader);
  // It has been given up, and may live: what it shares by descriptors stays as it is.
  void links_lost(PeerId loader);

  void read_by(int connection, int64_t program);
  void used(int connection, const ClientShareUsed& message);
  void asked(int connection, const ClientLinkAsked& message) const;
  void asked(int connection, const ClientPiecesAsked& message) const;
  void connection_gone(int connection);
  void program_ended(int64_t program);

  // The share's number, where the client has it open, or had, and needs it; it is then counted until it is given back.
  std::optional<int32_t> keep(int connection, PeerId loader, const ChunkPiece& piece, bool nowhere_else);
  void give_back(PeerId loader, const ChunkPiece& piece, std::optional<int32_t> share);
  void read_till_end(int connection, PeerId loader, const ChunkPiece& piece, int32_t share);
  // False: it was linked to a loader that is lost.
  bool readable(int32_t share) const;
  // The loader lives, and its memory is linked, but not to whom its piece was for.
  bool link_ended(PeerId loader, const ChunkPiece& piece) const;

 private:
  struct Share {
    PeerId loader = 0;
    int32_t card = 0;  // of the loader's
    uint64_t bytes = 0;
    UniqueFd fd;       // empty: linked, or the loader is lost
    bool linked = false;
    bool lost = false;  // its loader is, or offers another one
    std::set<int> used_by;
    int64_t kept = 0;  // pieces
  };
  using Shares = std::map<int32_t, Share>;  // by number, none of which is used twice
  Shares::iterator find(PeerId loader, int32_t card);
  const Share* linked(int connection, int32_t number) const;
  void lose(Shares::iterator share);
  void show(int connection, int32_t number, const Share& share) const;
  void end_if_lost(Shares::iterator share);

  PortMessenger& messenger_;
  Shares shares_;
  std::map<int, int64_t> readers_;  // connections, and their programs
  struct Held {
    PeerId loader = 0;
    ChunkPiece piece;
    int32_t share = 0;
  };
  std::set<PeerId> gone_;              // loaders that were lost or given up
  std::multimap<int64_t, Held> held_;  // by programs whose connections have ended
  int32_t next_ = 1;
};

}  // namespace penstock
