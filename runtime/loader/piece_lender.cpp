#include "runtime/loader/piece_lender.h"

#include <string>

#include "runtime/base/error.h"

namespace penstock {

uint64_t PieceLender::cards_for(PeerId port, int32_t card_reader) {
  if (card_reader == 0) return 0;
  if (linked(port) && !options_.links) {
    if (options_.cards > 0 && executor_.pieces(0) != nullptr) {
      notice_once("what cards share cannot be opened by trainers of rank " + std::to_string(port) +
                  ", whose images go by the host; loader.card_links: nccl would link them");
    }
    return 0;
  }
  if (offered_.insert(port).second) offer(port);
  uint64_t cards = 0;
  for (auto it = lending_.lower_bound({port, card_reader, 0}); it != lending_.end();) {
    const CardReader reader = *it;
    if (reader.port != port || reader.reader != card_reader) break;
    if (linked(port) && !still_linked(reader)) {
      it = lending_.erase(it);
      continue;
    }
    cards |= uint64_t{1} << reader.card;
    ++it;
  }
  return cards;
}

void PieceLender::offer(PeerId port) {
  for (size_t card = 0; card < options_.cards; ++card) {
    const CardPieces* const pieces = executor_.pieces(card);
    if (pieces == nullptr) continue;
    const ShareOffered offer{static_cast<int32_t>(card), pieces->bytes(), linked(port)};
    if (!offer.linked) {
      try {
        endpoint_.send_with(port, encode(offer), pieces->fd());
      } catch (const Error& error) {  // descriptors are short: a loss of speed, and no more
        notice_once("cards' memory is not shared, and images go by the host: " + error.message());
      }
    } else if (const std::string why = pieces->card().why_no_links(); why.empty()) {
      endpoint_.send(port, encode(offer));
    } else {
      notice_once("cards are not linked, and images go by the host: " + why);
    }
  }
}

// A program whose link has ended gets images by the host from now on, and hears why.
bool PieceLender::still_linked(const CardReader& reader) {
  const auto why = links_.ended(reader);
  if (!why) return true;
  links_.close(reader);
  endpoint_.send(reader.port, encode(LinkOpened{reader.card, reader.reader, {}, *why}));
  notice_once("a link to the card of a trainer (rank " + std::to_string(reader.port) + ") has ended: " + *why);
  return false;
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
  const CardReader reader{port, message.card_reader, message.card};
  if (message.used) {
    lending_.insert(reader);
  } else {
    lending_.erase(reader);
    links_.close(reader);
  }
}

void PieceLender::back(PeerId port, const PieceBack& message) const {
  pieces_of(port, message.card).give_back(message.id, port);
}

void PieceLender::asked(PeerId port, const LinkAsked& message) {
  (void)pieces_of(port, message.card);
  LinkOpened answer{message.card, message.card_reader, {}, {}};
  try {
    answer.id = links_.open({port, message.card_reader, message.card}, message.identity);
  } catch (const Error& error) {
    answer.problem = error.message();
    notice_once(error.message() + (error.remedy().empty() ? "" : "; " + error.remedy()));
  }
  endpoint_.send(port, encode(answer));
}

void PieceLender::asked(PeerId port, const PiecesAsked& message) {
  (void)pieces_of(port, message.card);
  links_.send({port, message.card_reader, message.card}, message.runs);
}

void PieceLender::lost(PeerId port) {
  std::erase_if(lending_, [&](const CardReader& reader) { return reader.port == port; });
  links_.close_all(port);
  // By a link nothing is read any more. What is mapped a program may read that outlives its port for a while; the job
  // does not, so there is nobody to whom that memory would be lent again.
  for (size_t card = 0; card < options_.cards; ++card) {
    CardPieces* const pieces = executor_.pieces(card);
    if (pieces != nullptr) linked(port) ? pieces->forget(port) : pieces->leave(port);
  }
}

void PieceLender::notice_once(const std::string& text) {
  if (noticed_.insert(text).second && notice_) notice_(text);
}

CardPieces& PieceLender::pieces_of(PeerId port, int32_t card) const {
  CardPieces* const pieces = card >= 0 && static_cast<size_t>(card) < options_.cards && card < 64
                                 ? executor_.pieces(static_cast<size_t>(card))
                                 : nullptr;
  if (pieces != nullptr) return *pieces;
  throw Error(ErrorKind::peer_lost,
              "rank " + std::to_string(port) + " speaks of memory of card " + std::to_string(card) + ", which shares none",
              "all ranks must run the same version of penstock");
}

}  // namespace penstock
