// Images of batches that stay where they were made: in memory that loaders' GPUs export. For a program that finishes
// images on a GPU of its own, as the Python package does (bindings/python/finishing.cpp); not installed, as neither is
// what opens such memory (runtime/gpu/gpu.h).
//
//   DataLoader train("job.yaml", "train", {.raw_images = true, .gpu_images = true});
//   OfferedGpuMemory offered(train);
//   for (auto& batch : train) {
//     for (const auto& memory : offered.take()) {            // each once, as batches come
//       gpu.open_exported(duplicate(memory->fd), memory->bytes);
//       offered.use(*memory);                                // from now on batches may have images there
//     }
//     for (const GpuImages& part : OfferedGpuMemory::images_of(batch)) …      // the others are in batch.image()
//   }
//
// Linked memory (gpu/gpu_link.h) is of GPUs that no descriptor gets to. Its images are received instead:
//
//   take() --ask_for_link()--> take() gives it again, with link_id or a problem --join by it, use()--> ask_for_images()
//
//   It ends with its loader, and with the link.
// Thread-safety: as the DataLoader's. Ownership: memory stays what it is for as long as anybody has it, whatever
//   becomes of its loader; a batch's images there stay as they are for as long as anybody has them, or the batch.
// Failure: Error(peer_lost) from ask_for_images() where the loader of linked memory is lost.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/memory_range.h"
#include "runtime/client/data_loader.h"

namespace penstock {

struct ExportedGpuMemory {
  ExportedGpuMemory(int32_t number_at_receiver, uint64_t size, int own_fd)
      : number(number_at_receiver), bytes(size), fd(own_fd) {}
  ExportedGpuMemory(const ExportedGpuMemory&) = delete;
  ExportedGpuMemory& operator=(const ExportedGpuMemory&) = delete;
  ~ExportedGpuMemory();

  const int32_t number;
  const uint64_t bytes;
  const int fd;  // closed with this; -1: linked
  bool linked = false;
  std::string link_id;                     // empty: not opened yet
  std::string problem;                     // why there is no link, or none any more
  mutable std::atomic<bool> gone = false;  // with its loader; publishes nothing
};

// Images of consecutive samples of a batch: uint8 [samples, 3, h, w] from `at` on.
struct GpuImages {
  std::shared_ptr<const ExportedGpuMemory> memory;
  int64_t first = 0;  // of the batch's samples
  int64_t samples = 0;
  uint64_t at = 0;
  uint64_t bytes = 0;
  std::shared_ptr<const void> batch;
};

class OfferedGpuMemory {
 public:
  explicit OfferedGpuMemory(const DataLoader& loader);

  // What loaders' GPUs export, each once, as next() hears of it; of linked memory once more after ask_for_link(), and
  // with a problem when its loader has ended the link.
  std::vector<std::shared_ptr<const ExportedGpuMemory>> take();
  // The program has it open: batches have images there only after it has said so.
  void use(const ExportedGpuMemory& memory);
  void use_none();  // it reads none any more, of batches that are still to be made
  // `identity`: Gpu::identity() of the GPU that will receive.
  void ask_for_link(const ExportedGpuMemory& memory, const std::string& identity);
  // What is about to be received, in that order.
  void ask_for_images(const ExportedGpuMemory& memory, std::vector<MemoryRange> runs);

  // In order of samples: what image() shows of these is old. What a stream was told to read there is read before the
  // last of them, and of the batch, goes.
  static std::vector<GpuImages> images_of(const Batch& batch);

 private:
  std::shared_ptr<DataLoaderImpl> loader_;
};

}  // namespace penstock
