// Card memory that other processes have too, by CUDA's virtual memory: allocations with a descriptor.
//
//   std::unique_ptr<CardShare> ring = make_cuda_share(info, hanging, bytes);
//   std::unique_ptr<CardShare> theirs = open_cuda_share(info, hanging, std::move(fd), bytes);   // in another process
//
// Not cudaIpcGetMemHandle: of that nobody says what becomes of memory whose owner has died while others have it open. Of
//   cuMemCreate the driver's manual does: it is freed when the last mapping and the last handle, descriptors included,
//   are gone. And a descriptor is for whom it is given to; the other kind's handle opens for who knows its bytes.
// The functions are the driver's, asked of the runtime by name: nothing links the driver's library.
// Failure: CardError(out_of_memory); Error(runtime) where driver or card do not share memory so, or the card that opens it
//   does not reach the one that it lies on.
// Ownership and thread-safety: as card.h says of shares. Of a card that hangs, mappings stay until the process ends.
#pragma once

#include <atomic>
#include <memory>

#include "runtime/base/memory.h"
#include "runtime/gpu/card.h"

namespace penstock {

// Of a card and its streams: one of these has not done its work in time. cudaFree and cudaFreeHost wait for all that a
// card was told, so what it may still work on is left to the end of the process.
using Hanging = std::shared_ptr<std::atomic<bool>>;

// The calling thread has chosen the card.
std::unique_ptr<CardShare> make_cuda_share(const CardInfo& card, Hanging hanging, size_t bytes);
std::unique_ptr<CardShare> open_cuda_share(const CardInfo& card, Hanging hanging, UniqueFd fd, size_t bytes);

}  // namespace penstock
