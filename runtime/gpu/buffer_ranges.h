// Buffer ranges of a GPU's memory that are exported to other processes: a chunk's images each, written by the loader's
//   GPU, read by the trainer's.
//
//   BufferRanges buffer_ranges(gpu, bytes);               // exported memory of the GPU, cut as it is asked for
//   // nothing: full, and the chunk goes by the host
//   if (auto buffer_range = buffer_ranges.take(chunk_bytes, receiver)) {
//     stream->copy(buffer_range->data, images, chunk_bytes); stream->wait(…);
//     buffer_ranges.export_range(buffer_range->id, receiver);  // announced to it, with id, at and bytes
//   }
//   buffer_ranges.give_back(id, receiver);                // its word that it has read it
//   buffer_ranges.forget(receiver);                       // it is dead: so has all that it had
//   buffer_ranges.leave(receiver);                        // nobody says any more what it has read: that stays as it is
//
//   // the other process
//   std::unique_ptr<ExportedMemory> theirs = gpu->open_exported(std::move(fd), buffer_ranges.bytes());
//   const uint8_t* images = images_in(*theirs, at, chunk_bytes);                          // gpu_finisher.h
//
// A buffer range has one writer at a time:
//
//     free --take()--> filling --export_range()--> exported --give_back(), forget()--> free
//                      |  the GPU writes           nobody writes; one consumer reads
//                      '--drop(), or export_range() to one that is gone--> free
//
//   Invariants: a buffer range that is being filled is its owner's alone, whatever becomes of the consumer. A buffer
//   range is exported to one consumer, and only that one's word, said once, frees it: ids are never used twice, so a
//   word that comes late or again changes nothing.
// What has to be true when it is said: at export_range(), the GPU stream that filled it was waited for; at
//   give_back(), the GPU stream that read it. Memory and death of either side: Sharing, in gpu.h: what was exported
//   stays readable when the loader dies, and nobody is left who would write to it.
// One consumer that reads slowly cannot have it all: take() for it is refused where it would then have more than four
//   times what is left (a dynamic threshold, as switches share their buffers by: Choudhury and Hahne, "Dynamic Queue
//   Length Thresholds for Shared-Memory Packet Switches", IEEE/ACM ToN 6(2), 1998). One alone has four fifths at most,
//   n have 4 / (1 + 4 n) each.
// Thread-safety: all of it from any thread. Ownership: the exported memory, which must go before the GPU; buffer ranges
//   are places in it.
// Failure: the constructor, as Gpu::export_memory().
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "runtime/base/memory_range.h"
#include "runtime/base/thread_annotations.h"
#include "runtime/gpu/gpu.h"

namespace penstock {

struct BufferRange {
  uint64_t id = 0;
  uint64_t at = 0;  // in the exported memory
  uint64_t bytes = 0;
  std::byte* data = nullptr;
};

class BufferRanges {
 public:
  using Consumer = int32_t;  // a receiver's rank

  BufferRanges(Gpu& gpu, size_t bytes);

  // `whose` it will be; nobody's: no limit but the memory's.
  std::optional<BufferRange> take(size_t bytes, std::optional<Consumer> whose = {});
  void drop(uint64_t id);
  // False: the consumer is gone, and the buffer range is free again; or this is none that is being filled.
  bool export_range(uint64_t id, Consumer to);
  void give_back(uint64_t id, Consumer from);
  void forget(Consumer gone);
  void leave(Consumer gone);

  Gpu& gpu() const noexcept { return gpu_; }
  // Error(peer_lost) where it is not all in the exported memory.
  const std::byte* at(const MemoryRange& run) const;
  int fd() const noexcept { return exported_->fd(); }
  size_t bytes() const noexcept { return exported_->bytes(); }

  struct Figures {
    int64_t exported = 0;  // buffer ranges, so far
    int64_t refused = 0;   // take() found no room
    int64_t out = 0;       // now: being filled, or exported
  };
  Figures figures() const;

 private:
  struct Out {
    uint64_t id = 0;
    uint64_t bytes = 0;
    std::optional<Consumer> whose;  // that it was taken for
    std::optional<Consumer> exported_to;
  };
  using Places = std::map<uint64_t, Out>;  // by place, in the exported memory's order
  Places::iterator find(uint64_t id) PENSTOCK_REQUIRES(mutex_);
  bool too_much(uint64_t bytes, Consumer whose) const PENSTOCK_REQUIRES(mutex_);

  Gpu& gpu_;
  std::unique_ptr<ExportedMemory> exported_;
  mutable Mutex mutex_;
  Places out_ PENSTOCK_GUARDED_BY(mutex_);
  std::set<Consumer> gone_ PENSTOCK_GUARDED_BY(mutex_);
  uint64_t next_id_ PENSTOCK_GUARDED_BY(mutex_) = 1;
  Figures figures_ PENSTOCK_GUARDED_BY(mutex_);
};

}  // namespace penstock
