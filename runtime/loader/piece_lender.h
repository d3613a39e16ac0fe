// What a loader lends of its cards' memory: offered to ports, lent with chunks, taken back.
//
//   PieceLender lender(endpoint, executor, {.cards = 2, .links = true}, notice);
//   work->share = lender.cards_for(lease.port, lease.card_reader);    // before the work is submitted
//   header.piece = lender.lend(*work);                                // it is done, and on its way
//   lender.drop(*work);                                               // or is not sent
//   lender.used(port, share_used);  lender.back(port, piece_back);    // what ports say
//   lender.asked(port, link_asked);  lender.asked(port, pieces_asked);   // the same, of memory that is linked
//   lender.lost(port);                                                // it is dead, and its programs perhaps not yet
//
// Of one card and one program that reads images from cards' memory (a client of a port):
//
//   nothing --cards_for()--> offered --ShareUsed(true)--> lending --ShareUsed(false)--> offered
//                              |  ^                          |
//                  LinkAsked:  |  '------ its link failed ---'
//                  LinkOpened  '--> offered, and the link joins, before it is used
//
// Until a program has said that it has the memory open, its chunks go by the host; so nothing is ever sent that nobody
//   can read, and nobody waits. A port that no descriptor gets to (on another node, or reached by MPI alone) is offered
//   memory to be linked, where the job says so, and else nothing.
// Thread-safety: the loader's event loop alone. Ownership: the links; endpoint and executor must outlive it.
// Failure: Error(peer_lost) where a port speaks of a card that there is not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "runtime/loader/card_links.h"
#include "runtime/loader/executor.h"
#include "runtime/protocol/messages.h"
#include "transport/transport.h"

namespace penstock {

class PieceLender {
 public:
  struct Options {
    size_t cards = 0;    // that the executor has
    bool links = false;  // loader.card_links
  };
  // `notice`: for people.
  PieceLender(Endpoint& endpoint, const Executor& executor, const Options& options,
              std::function<void(const std::string&)> notice = {})
      : endpoint_(endpoint), executor_(executor), options_(options), notice_(std::move(notice)), links_(executor) {}

  // A bit each, as ChunkWork::share. Offers the port what it was not offered yet. `card_reader`: 0: nobody.
  uint64_t cards_for(PeerId port, int32_t card_reader);
  std::optional<ChunkPiece> lend(const ChunkWork& work);
  void drop(const ChunkWork& work) const;

  void used(PeerId port, const ShareUsed& message);
  void back(PeerId port, const PieceBack& message) const;
  void asked(PeerId port, const LinkAsked& message);
  void asked(PeerId port, const PiecesAsked& message);
  void lost(PeerId port);
  void end_links() { links_.close_all(); }  // before the executor goes

 private:
  CardPieces& pieces_of(PeerId port, int32_t card) const;
  void offer(PeerId port);
  bool linked(PeerId port) const { return !endpoint_.capabilities(port).carries_descriptors; }
  bool still_linked(const CardReader& reader);
  void notice_once(const std::string& text);

  Endpoint& endpoint_;
  const Executor& executor_;
  Options options_;
  std::function<void(const std::string&)> notice_;
  CardLinks links_;
  std::set<PeerId> offered_;
  std::set<CardReader> lending_;
  std::set<std::string> noticed_;
};

}  // namespace penstock
