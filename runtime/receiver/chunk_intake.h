// Taking a chunk into a slot: the one place where delivered bytes are checked, hashed, finished and copied.
//
//   if (!wanted(slot, header)) drop;                                   // late or repeated: contents are equal anyway
//   take_chunk(split, pass, pool, slot_index, header, records, payload);   // Error(peer_lost) where it does not fit
//   take_chunk(…, payload, share);             // images that are in the memory of a loader's card stay there
//
// Hashes are taken from the bytes that arrived, so they check loader, transport and lease at once; of images that stay
//   on a card, by that card. The copy into the slot is the finishing pass; with a slot's last chunk the batch is mixed,
//   where the pipeline ends in MixUp or CutMix.
// Thread-safety: the port's event loop alone; touches nothing but the slot it is given.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "runtime/protocol/chunk.h"
#include "runtime/receiver/port_split.h"
#include "runtime/receiver/slot_pool.h"

namespace penstock {

// What a chunk's lease must agree with.
struct ChunkExpectation {
  PeerId sender = 0;
  int64_t epoch = 0;
  int32_t chunk_samples = 1;
  int64_t replica = 0;
};

// Makes a free slot ready for the chunks of `step`, a batch of `samples`.
void begin_slot(const PortSplit& split, int64_t step, int64_t samples, int32_t chunk_samples, bool keep_raw,
                Slot& slot);

// False for a chunk that the slot has already.
bool wanted(const Slot& slot, const ChunkHeader& header) noexcept;

void take_chunk(const PortSplit& split, const ChunkExpectation& expected, SlotPool& pool, int32_t slot_index,
                const ChunkHeader& header, std::vector<SampleRecord>& records, std::span<const std::byte> payload,
                std::optional<int32_t> share = {});

}  // namespace penstock
