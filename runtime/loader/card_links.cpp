#include "runtime/loader/card_links.h"

#include "runtime/base/error.h"

namespace penstock {

std::string CardLinks::open(const CardReader& reader, const std::string& identity) {
  links_.erase(reader);
  Card& card = executor_.pieces(static_cast<size_t>(reader.card))->card();
  if (!identity.empty() && identity == card.identity()) {
    throw Error(ErrorKind::runtime,
                "card " + std::to_string(card.info().number) +
                    " of the loader is the trainer's own, and a card is linked to others alone",
                "give loaders and trainers cards of their own, or let them share memory (transport: auto or shm)");
  }
  std::string id = card.link_id();
  links_[reader] = card.link(id, LinkEnd::sender);
  return id;
}

std::optional<std::string> CardLinks::ended(const CardReader& reader) const {
  const auto it = links_.find(reader);
  if (it == links_.end()) return "it was never opened";
  if (it->second->state() != LinkState::failed) return std::nullopt;
  return it->second->failure();
}

void CardLinks::send(const CardReader& reader, const std::vector<CardRun>& runs) {
  const auto it = links_.find(reader);
  if (it == links_.end()) return;  // it ended, and the program has not heard of it yet: its end of it has, or will
  const CardPieces& pieces = *executor_.pieces(static_cast<size_t>(reader.card));
  for (const CardRun& run : runs) it->second->send(pieces.at(run), run.bytes);
}

void CardLinks::close_all(PeerId port) {
  std::erase_if(links_, [&](const auto& item) { return item.first.port == port; });
}

}  // namespace penstock
