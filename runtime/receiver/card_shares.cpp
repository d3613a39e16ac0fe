#include "runtime/receiver/card_shares.h"

#include <algorithm>
#include <string>

#include "runtime/base/error.h"

namespace penstock {

void CardShares::offered(PeerId loader, const ShareOffered& message, UniqueFd fd) {
  if (message.linked == static_cast<bool>(fd) || message.card < 0) {
    throw Error(ErrorKind::peer_lost,
                "rank " + std::to_string(loader) + " offered memory of card " + std::to_string(message.card) +
                    (message.linked ? " by a link, with a descriptor" : " without a descriptor"),
                "all ranks must run the same version of penstock");
  }
  gone_.erase(loader);  // it has joined again
  if (const auto before = find(loader, message.card); before != shares_.end()) lose(before);
  const int32_t number = next_++;
  Share& share = shares_[number];
  share = {loader, message.card, message.bytes, std::move(fd), message.linked, false, {}, 0};
  for (const auto& [connection, program] : readers_) show(connection, number, share);
}

// Of a loader that lives.
CardShares::Shares::iterator CardShares::find(PeerId loader, int32_t card) {
  return std::find_if(shares_.begin(), shares_.end(), [&](const auto& item) {
    return item.second.loader == loader && item.second.card == card && !item.second.lost;
  });
}

void CardShares::loader_lost(PeerId loader) {
  gone_.insert(loader);
  for (auto it = shares_.begin(); it != shares_.end();) {
    const auto share = it++;
    if (share->second.loader == loader && !share->second.lost) lose(share);
  }
}

void CardShares::links_lost(PeerId loader) {
  gone_.insert(loader);
  for (auto it = shares_.begin(); it != shares_.end();) {
    const auto share = it++;
    if (share->second.loader == loader && share->second.linked && !share->second.lost) lose(share);
  }
}

void CardShares::lose(Shares::iterator share) {
  share->second.fd.reset();
  share->second.lost = true;
  if (share->second.linked) {
    for (const auto& [connection, program] : readers_) messenger_.to_client(connection, ClientShareGone{share->first});
  }
  end_if_lost(share);
}

void CardShares::end_if_lost(Shares::iterator share) {
  if (!share->second.lost || share->second.kept > 0) return;
  if (!share->second.linked) {
    for (const auto& [connection, program] : readers_) messenger_.to_client(connection, ClientShareGone{share->first});
  }
  shares_.erase(share);
}

bool CardShares::link_ended(PeerId loader, const ChunkPiece& piece) const {
  return std::any_of(shares_.begin(), shares_.end(), [&](const auto& item) {
    const Share& share = item.second;
    return share.loader == loader && share.card == piece.card && share.linked && !share.lost;
  });
}

bool CardShares::readable(int32_t share) const {
  const auto it = shares_.find(share);
  return it != shares_.end() && !(it->second.linked && it->second.lost);
}

void CardShares::read_by(int connection, int64_t program) {
  if (!readers_.emplace(connection, program).second) return;
  for (const auto& [number, share] : shares_) {
    if (!share.lost) show(connection, number, share);
  }
}

// That descriptors are short costs speed, and no more.
void CardShares::show(int connection, int32_t number, const Share& share) const {
  try {
    messenger_.to_client(connection, ClientShare{number, share.bytes, share.linked}, share.fd.get());
  } catch (const Error& error) {
    if (share.linked) throw;
    messenger_.notice("memory of a loader's card cannot be shown to a program, and images go by the host: " +
                      error.message());
  }
}

// What the client speaks of; nullptr: its loader was lost meanwhile.
const CardShares::Share* CardShares::linked(int connection, int32_t number) const {
  const auto it = shares_.find(number);
  return it == shares_.end() || it->second.lost || !it->second.linked || readers_.count(connection) == 0 ? nullptr
                                                                                                       : &it->second;
}

void CardShares::asked(int connection, const ClientLinkAsked& message) const {
  const Share* const share = linked(connection, message.share);
  if (share != nullptr) messenger_.to_rank(share->loader, LinkAsked{share->card, connection, message.identity});
}

void CardShares::asked(int connection, const ClientPiecesAsked& message) const {
  const Share* const share = linked(connection, message.share);
  if (share != nullptr) messenger_.to_rank(share->loader, PiecesAsked{share->card, connection, message.runs});
}

void CardShares::opened(PeerId loader, const LinkOpened& message) const {
  for (const auto& [number, share] : shares_) {
    if (share.loader != loader || share.card != message.card || share.lost || !share.linked) continue;
    if (readers_.count(message.card_reader) == 0) continue;
    messenger_.to_client(message.card_reader, ClientLinkOpened{number, message.id, message.problem});
  }
}

void CardShares::used(int connection, const ClientShareUsed& message) {
  const auto it = shares_.find(message.share);
  if (it == shares_.end() || readers_.count(connection) == 0) return;  // of a loader that was lost meanwhile
  Share& share = it->second;
  const bool changed = message.used ? share.used_by.insert(connection).second : share.used_by.erase(connection) != 0;
  if (changed) messenger_.to_rank(share.loader, ShareUsed{share.card, connection, message.used});
}

void CardShares::connection_gone(int connection) {
  if (readers_.erase(connection) == 0) return;
  for (auto& [number, share] : shares_) {
    if (share.used_by.erase(connection) == 0) continue;
    messenger_.to_rank(share.loader, ShareUsed{share.card, connection, false});
  }
}

void CardShares::read_till_end(int connection, PeerId loader, const ChunkPiece& piece, int32_t share) {
  const auto reader = readers_.find(connection);
  const auto known = shares_.find(share);
  if (reader == readers_.end() || known == shares_.end() || known->second.linked) {
    give_back(loader, piece, share);
  } else {
    held_.emplace(reader->second, Held{loader, piece, share});
  }
}

void CardShares::program_ended(int64_t program) {
  const auto [from, to] = held_.equal_range(program);
  for (auto it = from; it != to; ++it) give_back(it->second.loader, it->second.piece, it->second.share);
  held_.erase(from, to);
}

std::optional<int32_t> CardShares::keep(int connection, PeerId loader, const ChunkPiece& piece,
                                        bool nowhere_else) {
  const auto it = find(loader, piece.card);
  if (it == shares_.end()) {
    if (gone_.count(loader) != 0) return std::nullopt;  // it was given up, and lives
    throw Error(ErrorKind::peer_lost,
                "rank " + std::to_string(loader) + " sent a chunk with images in memory of a card that it does not share",
                "all ranks must run the same version of penstock");
  }
  if (!lies_within({piece.at, piece.bytes}, it->second.bytes)) {
    throw Error(ErrorKind::peer_lost,
                "rank " + std::to_string(loader) + " sent a chunk with images outside the memory that its card shares",
                "all ranks must run the same version of penstock");
  }
  const bool reads = it->second.used_by.count(connection) != 0 ||
                     (nowhere_else && !it->second.linked && readers_.count(connection) != 0);
  if (!reads) return std::nullopt;
  ++it->second.kept;
  return it->first;
}

void CardShares::give_back(PeerId loader, const ChunkPiece& piece, std::optional<int32_t> share) {
  messenger_.to_rank(loader, PieceBack{piece.card, piece.id});
  const auto it = share ? shares_.find(*share) : shares_.end();
  if (it == shares_.end()) return;
  --it->second.kept;
  end_if_lost(it);
}

}  // namespace penstock
