// A GPU that is this CPU: the same kernels, batches, copies and waits, without a GPU.
//
//   std::unique_ptr<Gpu> gpu = open_host_gpu(0, memory_bytes);
//
// For tests, and for looking at what a GPU would be asked (PENSTOCK_GPUS=host): much slower than the CPU path.
// Its stream does nothing before wait(), so memory that changes too early gives wrong pixels, as on a GPU.
// What it exports is a memfd, which other processes read through a mapping that cannot write; its links are sockets
//   (host_link.h).
// Its library (picture_decoder.h) is the CPU's decoder, which gives the bytes of arithmetic `exact`; a HostLibrary
//   makes it refuse, or takes it away.
// Thread-safety and failure: as gpu.h; memory beyond `memory_bytes` is GpuError(out_of_memory).
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "runtime/gpu/gpu.h"

namespace penstock {

struct HostLibrary {
  PictureDecoderFacts facts{.name = "the CPU's decoder"};
  std::string missing;                    // why there is none; empty: there is one
  std::atomic<int> decoders = 1'000'000;  // that can still be made
  // from any in-flight batch's thread; before it looks itself. Empty: none
  std::function<Refusal(const LibraryPicture&)> judge;
};

std::unique_ptr<Gpu> open_host_gpu(int number, size_t memory_bytes,
                                   std::shared_ptr<HostLibrary> library = std::make_shared<HostLibrary>());

}  // namespace penstock
