// A loader's ends of links to trainers' cards that no descriptor gets to: one a card and a program that reads there.
//
//   CardLinks links(executor);
//   const std::string id = links.open(reader, identity);      // for its end; the link joins when that one comes
//   if (auto why = links.ended(reader)) links.close(reader);  // why it does not go on
//   links.send(reader, runs);                                 // what the program asked for, in its order
//   links.close_all(port);                                    // it is dead
//
// Thread-safety: the loader's event loop alone, which waits for nothing here but the ends of links. Ownership: the
//   links; the executor's cards must outlive it.
// Failure: open(): Error(runtime) where cards cannot be linked, and where both are one card: NCCL takes none twice, and
//   would wait for itself. send(): Error(peer_lost) for what is not in the card's shared memory.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "runtime/base/card_run.h"
#include "runtime/loader/executor.h"
#include "transport/transport.h"

namespace penstock {

// A program, by its port and its number there, and the loader's card that it reads from.
struct CardReader {
  PeerId port = 0;
  int32_t reader = 0;
  int32_t card = 0;

  friend auto operator<=>(const CardReader&, const CardReader&) = default;
};

class CardLinks {
 public:
  explicit CardLinks(const Executor& executor) : executor_(executor) {}

  // Another one of the same reader goes.
  std::string open(const CardReader& reader, const std::string& identity);
  // Nothing: it lives, joined or not yet.
  std::optional<std::string> ended(const CardReader& reader) const;
  void send(const CardReader& reader, const std::vector<CardRun>& runs);
  void close(const CardReader& reader) { links_.erase(reader); }
  void close_all(PeerId port);
  void close_all() { links_.clear(); }

 private:
  const Executor& executor_;
  std::map<CardReader, std::unique_ptr<CardLink>> links_;
};

}  // namespace penstock
