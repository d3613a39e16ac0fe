// GPU memory that other processes have too, by CUDA's virtual memory: allocations with a descriptor.
//
//   std::unique_ptr<ExportedMemory> ring = make_cuda_exported_memory(info, hanging, bytes);
//   // in another process
//   std::unique_ptr<ExportedMemory> theirs = open_cuda_exported_memory(info, hanging, std::move(fd), bytes);
//
// Why not cudaIpcGetMemHandle: nothing says what becomes of such memory when its owner dies while others have it open.
//   For cuMemCreate the driver's manual does: memory is freed when the last mapping and the last handle, descriptors
//   included, are gone. Besides, a descriptor is only for the process that it is given to; an IPC handle opens for
//   anyone who knows its bytes.
// The functions are the driver's, asked of the runtime by name: nothing links the driver's library.
// Failure: GpuError(out_of_memory); Error(runtime) where driver or GPU do not export memory so, or the GPU that opens it
//   does not reach the one that it lies on.
// Ownership and thread-safety: as gpu.h says of exported memory. Of a GPU that hangs, mappings stay until the process ends.
#pragma once

#include <atomic>
#include <memory>

#include "runtime/base/memory.h"
#include "runtime/gpu/gpu.h"

namespace penstock {

// Shared by a GPU and its CUDA streams: one of the streams has not done its work in time. cudaFree and cudaFreeHost
// wait for all that a GPU was told, so what it may still work on is left to the end of the process.
using Hanging = std::shared_ptr<std::atomic<bool>>;

// The calling thread has chosen the GPU.
std::unique_ptr<ExportedMemory> make_cuda_exported_memory(const GpuInfo& gpu, Hanging hanging, size_t bytes);
std::unique_ptr<ExportedMemory> open_cuda_exported_memory(const GpuInfo& gpu, Hanging hanging, UniqueFd fd,
                                                          size_t bytes);

}  // namespace penstock
