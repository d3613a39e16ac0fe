// A card that is this CPU: the same kernels, batches, copies and waits, without a card.
//
//   std::unique_ptr<Card> card = open_host_card(0, memory_bytes);
//
// For tests, and for looking at what a card would be asked (PENSTOCK_CARDS=host): much slower than the CPU path.
// A stream does nothing before wait(), so memory that changes too early gives wrong pixels, as on a card.
// What it shares is a memfd, which other processes read through a mapping that cannot write; its links are sockets
//   (host_link.h).
// Its library (picture_decoder.h) is the CPU's decoder, which gives the bytes of arithmetic `exact`; a HostLibrary
//   makes it refuse, or takes it away.
// Thread-safety and failure: as card.h; memory beyond `memory_bytes` is CardError(out_of_memory).
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "runtime/gpu/card.h"

namespace penstock {

struct HostLibrary {
  PictureDecoderFacts facts{.name = "the CPU's decoder"};
  std::string missing;                                  // why there is none; empty: there is one
  std::atomic<int> decoders = 1'000'000;                // that can still be made
  std::function<Refusal(const LibraryPicture&)> judge;  // from any lane's thread; before it looks itself. Empty: none
};

std::unique_ptr<Card> open_host_card(int number, size_t memory_bytes,
                                     std::shared_ptr<HostLibrary> library = std::make_shared<HostLibrary>());

}  // namespace penstock
