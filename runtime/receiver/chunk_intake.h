// Taking a chunk into a batch buffer: the one place where delivered bytes are checked, hashed, finished and copied.
//
//   if (!wanted(batch_buffer, header)) drop;                           // late or repeated: contents are equal anyway
//   // Error(peer_lost) where it does not fit
//   take_chunk(split, expectation, pool, batch_buffer_index, header, records, payload);
//   take_chunk(…, payload, exported);          // images that are in the memory of a loader's GPU stay there
//   ChunkHashes twice = hash_chunk(split, expectation, header, records, payload);   // of one that is only to be compared
//
// Hashes are taken from the bytes that arrived, so they check loader, transport and lease at once; of images that stay
//   on a GPU, by that GPU. The copy into the batch buffer is the finishing pass; with a batch buffer's last chunk the
//   batch is mixed, where the pipeline ends in MixUp or CutMix.
// Thread-safety: the receiver's event loop alone; take_chunk() touches nothing but the batch buffer that it is given, and
//   moves the records there. Ownership: the payload is only looked at, while the call lasts.
// Failure: Error(peer_lost), naming the sender, for a chunk that does not fit its lease or its own envelope; the batch
//   buffer then is as it was before.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "runtime/protocol/chunk.h"
#include "runtime/receiver/batch_buffer_pool.h"
#include "runtime/receiver/receiver_split.h"

namespace penstock {

// What a chunk's lease must agree with.
struct ChunkExpectation {
  PeerId sender = 0;
  int64_t epoch = 0;
  int32_t chunk_samples = 1;
  int64_t replica = 0;
  bool by_holder = false;  // as LeaseStreamReady: a sample's row is that of its planned position
  int64_t num_replicas = 1;
};

// Makes a free batch buffer ready for the chunks of `step`, a batch of `samples`. `by_holder`: as LeaseStreamReady.
void begin_batch_buffer(const ReceiverSplit& split, int64_t step, int64_t samples, int32_t chunk_samples,
                        bool by_holder, bool keep_raw, BatchBuffer& batch_buffer);

// False for a chunk that the batch buffer has already.
bool wanted(const BatchBuffer& batch_buffer, const ChunkHeader& header) noexcept;

// A hash for each sample, over everything that the hashes of the stream cover (base/hash.h).
using ChunkHashes = std::vector<Sum128>;

ChunkHashes take_chunk(const ReceiverSplit& split, const ChunkExpectation& expected, BatchBufferPool& pool,
                       int32_t batch_buffer_index, const ChunkHeader& header, std::vector<SampleRecord>& records,
                       std::span<const std::byte> payload, std::optional<int32_t> exported = {});

// Error(peer_lost) where the payload is not what the header says.
ChunkHashes hash_chunk(const ReceiverSplit& split, const ChunkExpectation& expected, const ChunkHeader& header,
                       const std::vector<SampleRecord>& records, std::span<const std::byte> payload);

}  // namespace penstock
