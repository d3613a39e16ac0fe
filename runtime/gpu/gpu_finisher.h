// Images of a batch on the trainer's GPU: uploaded as the uint8 bytes that came, or copied there from what a loader's
// GPU exports, and finished (pixels/finish.h).
//
//   GpuFinisher finisher(open_trainers_gpu(0), loader.finisher(), stream);     // of a split opened with raw_images
//   finisher.finish(images.as<uint8_t>(), images.shape[0], tensor);            // hands it over
//   finisher.finish({{of_batch_buffer, 6}, {images_in(*theirs, at, bytes), 10, true}}, tensor);  // buffer_ranges.h
//   // of parts by links: asked of the loader, and then finish(parts, …)
//   for (const LinkRun& run : finisher.runs(parts)) …;
//   ...                                             // the consumer's stream waits for an event of `stream`
//   finisher.wait();                                // now the batch may go
//
// Against finishing on the CPU: a quarter of float32's bytes cross the bus, and the CPU writes none of them. The bytes
//   are the CPU's: both follow the finisher's table.
// Order: everything happens in one CUDA stream, in the order of the calls. `stream` is the caller's (a cudaStream_t),
//   who may record an event in it behind finish() for whoever reads the tensor; nullptr: one of its own, and then
//   wait() is all there is to know. The tensor's memory must be free to write for that CUDA stream.
// Memory: `memory_bytes` of the GPU at most, or an image where that is more: batches go through it in pieces, of which
//   each waits, on the GPU, for the one before. Nothing pinned. The context is this process's own, that of the
//   caller's other CUDA code (the primary one): there is no second.
// Waiting: finish() from pinned memory for nothing; from a batch buffer, which CUDA knows nothing of, until the driver
//   has taken its bytes, which is a copy on this CPU.
//   What a loader's GPU exports goes through the same memory: a copy within the GPU, or between two, and the loader
//   has its buffer range back the sooner. What comes by a link (gpu_link.h) is received there.
// Ownership: the GPU; `stream` must outlive this. `images` and `tensor` must stay until wait() has returned, or this
//   is gone.
// Failure: GpuError: the constructor where the GPU is short of memory or cannot be used; finish() and wait() where a
//   call fails or the GPU has not answered for timeout_ns. What finish() was told before is then unknown, and it must
//   not be asked again.
//   Where a link fails, or brings nothing for timeout_ns, wait() ends the links in use, and throws GpuError by name:
//   the tensors since the last wait() are unknown, the GPU is as good as before.
//   Error(usage) for a tensor that is not aligned to its elements, and for images without colour.
// Thread-safety: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/memory_range.h"
#include "runtime/gpu/gpu.h"
#include "runtime/pixels/finish.h"

namespace penstock {

// Raw images of successive samples: planar uint8, as a batch buffer has them.
struct RawImages {
  const uint8_t* images = nullptr;
  int64_t samples = 0;
  bool on_gpu = false;  // in memory that this GPU reaches; else here
  // To be received by it instead: the first stands `at` in the memory that the loader's GPU exports.
  GpuLink* link = nullptr;
  uint64_t at = 0;
};

// What is received at a time.
struct LinkRun {
  GpuLink* link = nullptr;
  MemoryRange run;
};

// Those of a buffer range, by what its loader said of it. Error(peer_lost) for a place outside of the exported memory.
const uint8_t* images_in(const ExportedMemory& exported, uint64_t at, uint64_t bytes);

struct GpuFinisherOptions {
  size_t memory_bytes = size_t{8} << 20;
  Nanoseconds timeout_ns = 10 * kSecond;
};

class GpuFinisher {
 public:
  GpuFinisher(std::shared_ptr<Gpu> gpu, const Finisher& finisher, void* stream = nullptr,
              const GpuFinisherOptions& options = {});

  ~GpuFinisher();
  GpuFinisher(const GpuFinisher&) = delete;
  GpuFinisher& operator=(const GpuFinisher&) = delete;

  // A batch, from wherever its samples are. `tensor`: GPU memory for as many finished ones.
  void finish(std::span<const RawImages> batch, void* tensor);
  void finish(std::initializer_list<RawImages> batch, void* tensor) {
    finish(std::span(batch.begin(), batch.size()), tensor);
  }
  void finish(const uint8_t* images, int64_t samples, void* tensor) { finish({{images, samples}}, tensor); }
  void wait();
  // The receives that finish() will do for this batch, in their order: what the loaders have to send.
  std::vector<LinkRun> runs(std::span<const RawImages> batch) const;

  struct Figures {
    int64_t samples = 0;
    int64_t uploaded_bytes = 0;
    int64_t copied_bytes = 0;  // GPU to GPU, in one machine
    int64_t linked_bytes = 0;  // the same, by links
    GpuTimes times;            // of what was waited for
  };
  const Figures& figures() const noexcept { return figures_; }
  const GpuInfo& gpu() const noexcept { return gpu_->info(); }
  size_t memory_bytes() const noexcept { return layout_.total; }  // taken from the GPU

 private:
  // How the memory is divided: the table, the descriptors of a part of a batch, and its images.
  struct Layout {
    size_t image_bytes = 0;  // uint8
    size_t images = 0;       // in a piece
    size_t spans_each = 0;
    size_t parts_at = 0;
    size_t spans_at = 0;
    size_t images_at = 0;
    size_t total = 0;
  };
  static Layout layout_for(const Finisher& finisher, size_t memory_bytes);
  void describe(const Finisher& finisher);
  template <class Fetch, class Launch>
  void cut(std::span<const RawImages> batch, const Fetch& fetch, const Launch& launch) const;
  void fetch(const RawImages& part, size_t first, size_t images, size_t at);
  void wait_for_links();
  void launch(size_t images, uint8_t* to);

  std::shared_ptr<Gpu> gpu_;
  Layout layout_;
  size_t images_per_sample_;
  size_t element_bytes_;
  Nanoseconds timeout_ns_;
  GpuBlock memory_;
  std::vector<std::byte> front_;       // until it is uploaded
  std::unique_ptr<GpuStream> stream_;  // goes before the memory that it works on
  std::set<GpuLink*> links_;           // that the GPU stream was told to receive by since the last wait
  Figures figures_;
};

}  // namespace penstock
