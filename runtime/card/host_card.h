// A card that is this CPU: the same kernels, batches, copies and waits, without a card.
//
//   std::unique_ptr<Card> card = open_host_card(0, memory_bytes);
//
// For tests, and for looking at what a card would be asked (PENSTOCK_CARDS=host): much slower than the CPU path.
// A stream does nothing before wait(), so memory that changes too early gives wrong pixels, as on a card.
// Thread-safety and failure: as card.h; memory beyond `memory_bytes` is CardError(out_of_memory).
#pragma once

#include <cstddef>
#include <memory>

#include "runtime/card/card.h"

namespace penstock {

std::unique_ptr<Card> open_host_card(int number, size_t memory_bytes);

}  // namespace penstock
