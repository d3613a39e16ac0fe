#include "runtime/gpu/card_pieces.h"

#include <algorithm>

#include "runtime/gpu/card_alignment.h"

namespace penstock {

CardPieces::CardPieces(Card& card, size_t bytes) : card_(card), share_(card.share(bytes)) {}

const std::byte* CardPieces::at(const CardRun& run) const {
  if (!lies_within(run, share_->bytes())) {
    throw Error(ErrorKind::peer_lost, "a trainer asked for images outside the memory that a card shares",
                "all ranks must run the same version of penstock");
  }
  return share_->data() + run.at;
}

// In the first gap that is wide enough: pieces of a split have one size and go back about in order, so gaps close.
std::optional<CardPiece> CardPieces::take(size_t bytes, std::optional<Consumer> whose) {
  MutexLock lock(mutex_);
  uint64_t at = 0;
  for (const auto& [place, out] : out_) {
    if (place - at >= bytes) break;
    at = card_aligned(place + out.bytes);
  }
  if (bytes == 0 || at > share_->bytes() || bytes > share_->bytes() - at || (whose && too_much(bytes, *whose))) {
    ++figures_.refused;
    return std::nullopt;
  }
  const CardPiece piece{next_id_++, at, bytes, share_->data() + at};
  out_[at] = {piece.id, bytes, whose, std::nullopt};
  return piece;
}

bool CardPieces::too_much(uint64_t bytes, Consumer whose) const {
  constexpr uint64_t kTimesWhatIsLeft = 4;
  uint64_t its = bytes;
  uint64_t all = bytes;
  for (const auto& [place, out] : out_) {
    all += out.bytes;
    if (out.whose == whose) its += out.bytes;
  }
  return all > share_->bytes() || its > kTimesWhatIsLeft * (share_->bytes() - all);
}

CardPieces::Places::iterator CardPieces::find(uint64_t id) {
  return std::find_if(out_.begin(), out_.end(), [&](const auto& item) { return item.second.id == id; });
}

void CardPieces::drop(uint64_t id) {
  MutexLock lock(mutex_);
  const auto piece = find(id);
  if (piece != out_.end() && !piece->second.lent_to) out_.erase(piece);
}

bool CardPieces::lend(uint64_t id, Consumer to) {
  MutexLock lock(mutex_);
  const auto piece = find(id);
  if (piece == out_.end() || piece->second.lent_to) return false;
  if (gone_.count(to) != 0) {
    out_.erase(piece);
    return false;
  }
  piece->second.lent_to = to;
  ++figures_.lent;
  return true;
}

void CardPieces::give_back(uint64_t id, Consumer from) {
  MutexLock lock(mutex_);
  const auto piece = find(id);
  if (piece != out_.end() && piece->second.lent_to == from) out_.erase(piece);
}

void CardPieces::forget(Consumer gone) {
  MutexLock lock(mutex_);
  gone_.insert(gone);
  std::erase_if(out_, [&](const auto& item) { return item.second.lent_to == gone; });
}

void CardPieces::leave(Consumer gone) {
  MutexLock lock(mutex_);
  gone_.insert(gone);
}

CardPieces::Figures CardPieces::figures() const {
  MutexLock lock(mutex_);
  Figures figures = figures_;
  figures.out = std::ssize(out_);
  return figures;
}

}  // namespace penstock
