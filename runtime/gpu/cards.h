// Which cards a loader has.
//
//   std::vector<std::unique_ptr<Card>> cards = open_cards({.count = 1, .taker = 0});
//
// Loaders of a node count from the last card down, as trainers count from the first up; so the two stay apart while
//   there are cards enough, and share when not.
// PENSTOCK_CARDS in the environment: `host` gives cards that are this CPU (host_card.h), `none` gives none; for tests
//   and comparisons.
// Failure: Error(runtime), with what to do, where not one can be opened. Thread-safety: a free function.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/gpu/card.h"

namespace penstock {

struct CardChoice {
  int count = 1;  // of this loader
  int taker = 0;  // which loader of its node it is
};

std::vector<std::unique_ptr<Card>> open_cards(const CardChoice& choice);

// The card of a trainer, by the number that its program knows it by; PENSTOCK_CARDS as above.
std::unique_ptr<Card> open_trainers_card(int number);
// Empty where there is one; else what open_trainers_card() would say. Makes no context on any card.
std::string why_no_card();

// The numbers it takes, of `total` cards; each once.
std::vector<int> chosen_cards(const CardChoice& choice, int total);

}  // namespace penstock
