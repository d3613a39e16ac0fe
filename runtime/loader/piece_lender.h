// What a loader lends of its cards' memory: offered to the ports of its node, lent with chunks, taken back.
//
//   PieceLender lender(endpoint, executor, cards);
//   work->share = lender.cards_for(lease.port, lease.card_reader);    // before the work is submitted
//   header.piece = lender.lend(*work);                                // it is done, and on its way
//   lender.drop(*work);                                               // or is not sent
//   lender.used(port, share_used);  lender.back(port, piece_back);    // what ports say
//   lender.lost(port);                                                // it is dead: so has all that it had
//
// Of one card and one program that reads images from cards' memory (a client of a port):
//
//   nothing --cards_for()--> offered --ShareUsed(true)--> lending --ShareUsed(false)--> offered
//
// Until a program has said that it has the memory open, its chunks go by the host; so nothing is ever sent that nobody
//   can read, and nobody waits. A port on another node, or reached by MPI alone, is offered nothing.
// Thread-safety: the loader's event loop alone. Ownership: none; endpoint and executor must outlive it.
// Failure: Error(peer_lost) where a port speaks of a card that there is not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <tuple>

#include "runtime/loader/executor.h"
#include "runtime/protocol/messages.h"
#include "transport/transport.h"

namespace penstock {

class PieceLender {
 public:
  // `cards`: that the executor has.
  PieceLender(Endpoint& endpoint, const Executor& executor, size_t cards)
      : endpoint_(endpoint), executor_(executor), cards_(cards) {}

  // A bit each, as ChunkWork::share. Offers the port what it was not offered yet. `card_reader`: 0: nobody.
  uint64_t cards_for(PeerId port, int32_t card_reader);
  std::optional<ChunkPiece> lend(const ChunkWork& work);
  void drop(const ChunkWork& work) const;

  void used(PeerId port, const ShareUsed& message);
  void back(PeerId port, const PieceBack& message) const;
  void lost(PeerId port);

 private:
  CardPieces& pieces_of(PeerId port, int32_t card) const;

  Endpoint& endpoint_;
  const Executor& executor_;
  size_t cards_;
  std::set<PeerId> offered_;
  std::set<std::tuple<PeerId, int32_t, int32_t>> lending_;  // port, reader, card
};

}  // namespace penstock
