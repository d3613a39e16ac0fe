#include "runtime/loader/piece_lender.h"

#include <string>

#include "runtime/base/error.h"

namespace penstock {

uint64_t PieceLender::cards_for(PeerId port, int32_t card_reader) {
  if (card_reader == 0 || !endpoint_.capabilities(port).carries_descriptors) return 0;
  if (offered_.insert(port).second) {
    for (size_t card = 0; card < cards_; ++card) {
      const CardPieces* const pieces = executor_.pieces(card);
      if (pieces == nullptr) continue;
      endpoint_.send_with(port, encode(ShareOffered{static_cast<int32_t>(card), pieces->bytes()}), pieces->fd());
    }
  }
  uint64_t cards = 0;
  for (auto it = lending_.lower_bound({port, card_reader, 0}); it != lending_.end(); ++it) {
    const auto& [its_port, its_reader, card] = *it;
    if (its_port != port || its_reader != card_reader) break;
    cards |= uint64_t{1} << card;
  }
  return cards;
}

std::optional<ChunkPiece> PieceLender::lend(const ChunkWork& work) {
  if (!work.shared) return std::nullopt;
  const CardPiece& piece = work.shared->piece;
  if (!executor_.pieces(work.shared->card)->lend(piece.id, work.lease.port)) return std::nullopt;
  return ChunkPiece{static_cast<int32_t>(work.shared->card), piece.id, piece.at, piece.bytes};
}

void PieceLender::drop(const ChunkWork& work) const {
  if (work.shared) executor_.pieces(work.shared->card)->drop(work.shared->piece.id);
}

void PieceLender::used(PeerId port, const ShareUsed& message) {
  (void)pieces_of(port, message.card);
  if (message.used) {
    lending_.insert({port, message.card_reader, message.card});
  } else {
    lending_.erase({port, message.card_reader, message.card});
  }
}

void PieceLender::back(PeerId port, const PieceBack& message) const {
  pieces_of(port, message.card).give_back(message.id, port);
}

void PieceLender::lost(PeerId port) {
  std::erase_if(lending_, [&](const auto& item) { return std::get<0>(item) == port; });
  for (size_t card = 0; card < cards_; ++card) {
    if (CardPieces* const pieces = executor_.pieces(card)) pieces->forget(port);
  }
}

CardPieces& PieceLender::pieces_of(PeerId port, int32_t card) const {
  CardPieces* const pieces =
      card >= 0 && static_cast<size_t>(card) < cards_ && card < 64 ? executor_.pieces(static_cast<size_t>(card)) : nullptr;
  if (pieces != nullptr) return *pieces;
  throw Error(ErrorKind::peer_lost,
              "rank " + std::to_string(port) + " speaks of memory of card " + std::to_string(card) + ", which shares none",
              "all ranks must run the same version of penstock");
}

}  // namespace penstock
