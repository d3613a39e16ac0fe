// A pool of batch buffers, for one iteration over a split at a time: batches being filled, ready, or in the program's hands.
//
//   const int32_t index = pool.find_free();                // -1: the program holds the rest, or they are filling
//   begin_batch_buffer(split, step, samples, chunk_samples, by_holder, keep_raw, pool.batch_buffers[index]);
//   pool.batch_buffer_data(index);                         // chunk_intake.h writes there
//
//     free --reserve--> filling --all chunks in--> ready --deliver--> held --release--> free
//
// A pool serves one iteration at a time, through all its lease streams, and outlives it: what the program still holds of
// an older iteration stays held, and the next iteration works with the rest. Plain bookkeeping.
// Thread-safety: the receiver's event loop alone. Ownership: the batch buffers' memory; a program that has it mapped
//   keeps it. Failure: none.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/hash.h"
#include "runtime/base/memory.h"
#include "runtime/protocol/chunk.h"
#include "runtime/protocol/client_protocol.h"

namespace penstock {

// Memory of a loader's GPU, with images of a batch, until the client has read them there.
struct HeldBufferRange {
  PeerId loader = 0;
  ChunkBufferRange buffer_range;
  int32_t exported = 0;
};

struct BatchBuffer {
  enum class State : uint8_t { free, filling, ready, held };
  State state = State::free;
  int64_t step = -1;
  int64_t samples = 0;            // in this batch
  int64_t samples_missing = 0;    // until ready
  std::vector<bool> chunk_taken;  // by chunk number
  std::vector<bool> row_taken;    // where chunks are not successive rows; else empty
  StreamHash hash;                // of what it holds
  int64_t num_valid = 0;
  std::vector<SampleRecord> records;           // by place in the batch
  std::vector<int64_t> labels;                 // class numbers, also where soft ones are delivered
  Draws draws;                                 // of the batch, where it is mixed
  std::vector<std::vector<uint8_t>> raw;       // by field: uint8 images before finishing, where a dump wants them
  std::vector<HeldBufferRange> buffer_ranges;  // exported by loaders
  std::vector<ClientBufferRange> on_gpus;      // samples whose images are in those, and not here
  std::string problem;                         // a sample that fails the job when the batch is delivered
  std::string remedy;                          // where it is not that of unusable samples
};

struct BatchBufferPool {
  int32_t id = 0;
  int32_t split_id = 0;
  BatchBufferLayout layout;
  SharedMemory memory;
  std::vector<BatchBuffer> batch_buffers;
  uint64_t iteration = 0;  // that uses it; 0: none
  bool shown = false;      // the client has the memory

  std::byte* batch_buffer_data(size_t batch_buffer) const noexcept {
    return memory.data() + batch_buffer * layout.total_bytes;
  }
  int32_t count(BatchBuffer::State state) const noexcept {
    int32_t n = 0;
    for (const BatchBuffer& batch_buffer : batch_buffers) n += batch_buffer.state == state ? 1 : 0;
    return n;
  }
  // A free batch buffer, or -1.
  int32_t find_free() const noexcept {
    for (size_t i = 0; i < batch_buffers.size(); ++i) {
      if (batch_buffers[i].state == BatchBuffer::State::free) return static_cast<int32_t>(i);
    }
    return -1;
  }
};

}  // namespace penstock
