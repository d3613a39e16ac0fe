// Pieces of a card's memory that are lent to other processes: a chunk's images each, written by the loader's card, read
//   by
// the trainer's.
//
//   CardPieces pieces(card, bytes);                       // one share of the card, cut as it is asked for
//   if (auto piece = pieces.take(chunk_bytes, port)) {    // nothing: full, and the chunk goes by the host
//     stream->copy(piece->data, images, chunk_bytes); stream->wait(…);
//     pieces.lend(piece->id, port);                       // announced to it, with id, at and bytes
//   }
//   pieces.give_back(id, port);                           // its word that it has read it
//   pieces.forget(port);                                  // it is dead: so has all that it had
//   pieces.leave(port);                                   // nobody says any more what it has read: that stays as it is
//
//   std::unique_ptr<CardShare> theirs = card->open_share(std::move(fd), pieces.bytes());   // the other process
//   const uint8_t* images = images_in(*theirs, at, chunk_bytes);                          // card_finisher.h
//
// A piece has one writer at a time:
//
//     free --take()--> filling --lend()--> lent --give_back(), forget()--> free
//                      |  the card writes         nobody writes; one consumer reads
//                      '--drop(), or lend() to one that is gone--> free
//
//   Invariants: a piece that is being filled is its taker's alone, whatever becomes of the consumer. A piece is lent to
//   one consumer, and only that one's word, said once, frees it: ids are never used twice, so a word that comes late or
//   again changes nothing.
// What has to be true when it is said: at lend(), the stream that filled it was waited for; at give_back(), the stream
//   that read it. Memory and death of either side: Sharing, in card.h: what was lent stays readable when the loader
//   dies, and nobody is left who would write to it.
// One consumer that reads slowly cannot have it all: take() for it is refused where it would then have more than four
//   times what is left (a dynamic threshold, as switches share their buffers by: Choudhury and Hahne, "Dynamic Queue
//   Length Thresholds for Shared-Memory Packet Switches", IEEE/ACM ToN 6(2), 1998). One alone has four fifths at most,
//   n have 4 / (1 + 4 n) each.
// Thread-safety: all of it from any thread. Ownership: the share, which must go before the card; pieces are places in
//   it.
// Failure: the constructor, as Card::share().
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "runtime/base/card_run.h"
#include "runtime/base/thread_annotations.h"
#include "runtime/gpu/card.h"

namespace penstock {

struct CardPiece {
  uint64_t id = 0;
  uint64_t at = 0;  // in the share
  uint64_t bytes = 0;
  std::byte* data = nullptr;
};

class CardPieces {
 public:
  using Consumer = int32_t;  // a port's rank

  CardPieces(Card& card, size_t bytes);

  // `whose` it will be; nobody's: no limit but the memory's.
  std::optional<CardPiece> take(size_t bytes, std::optional<Consumer> whose = {});
  void drop(uint64_t id);
  // False: the consumer is gone, and the piece is free again; or this is none that is being filled.
  bool lend(uint64_t id, Consumer to);
  void give_back(uint64_t id, Consumer from);
  void forget(Consumer gone);
  void leave(Consumer gone);

  Card& card() const noexcept { return card_; }
  // Error(peer_lost) where it is not all in the share.
  const std::byte* at(const CardRun& run) const;
  int fd() const noexcept { return share_->fd(); }
  size_t bytes() const noexcept { return share_->bytes(); }

  struct Figures {
    int64_t lent = 0;     // pieces, so far
    int64_t refused = 0;  // take() found no room
    int64_t out = 0;      // now: being filled, or lent
  };
  Figures figures() const;

 private:
  struct Out {
    uint64_t id = 0;
    uint64_t bytes = 0;
    std::optional<Consumer> whose;  // that it was taken for
    std::optional<Consumer> lent_to;
  };
  using Places = std::map<uint64_t, Out>;  // by place, in the share's order
  Places::iterator find(uint64_t id) PENSTOCK_REQUIRES(mutex_);
  bool too_much(uint64_t bytes, Consumer whose) const PENSTOCK_REQUIRES(mutex_);

  Card& card_;
  std::unique_ptr<CardShare> share_;
  mutable Mutex mutex_;
  Places out_ PENSTOCK_GUARDED_BY(mutex_);
  std::set<Consumer> gone_ PENSTOCK_GUARDED_BY(mutex_);
  uint64_t next_id_ PENSTOCK_GUARDED_BY(mutex_) = 1;
  Figures figures_ PENSTOCK_GUARDED_BY(mutex_);
};

}  // namespace penstock
