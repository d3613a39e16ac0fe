#include "runtime/gpu/nvjpeg/nvjpeg_on_gpu.h"

#include <cuda_runtime_api.h>

#include "runtime/gpu/nvjpeg/nvjpeg_decoder.h"

namespace penstock {
namespace {

// The library may call from threads that have chosen another GPU, and the in-flight batch's may be one that ends it.
template <class Call>
void on_gpu(int gpu, Call call) {
  if (cudaSetDevice(gpu) != cudaSuccess || call() != cudaSuccess) (void)cudaGetLastError();
}

NvjpegRuntime runtime_of(int gpu, const std::function<void()>& wait) {
  NvjpegRuntime runtime;
  runtime.allocate = [gpu](size_t bytes) {
    void* memory = nullptr;
    on_gpu(gpu, [&] { return cudaMalloc(&memory, bytes); });
    return memory;
  };
  runtime.release = [gpu](void* memory) { on_gpu(gpu, [&] { return cudaFree(memory); }); };
  runtime.allocate_pinned = [gpu](size_t bytes) {
    void* memory = nullptr;
    on_gpu(gpu, [&] { return cudaHostAlloc(&memory, bytes, cudaHostAllocPortable); });
    return memory;
  };
  runtime.release_pinned = [gpu](void* memory) { on_gpu(gpu, [&] { return cudaFreeHost(memory); }); };
  runtime.wait = wait;
  return runtime;
}

}  // namespace

std::unique_ptr<PictureDecoder> open_nvjpeg(int gpu, cudaStream_t stream, const std::function<void()>& wait,
                                            const PictureDecoderOptions& options) {
  return std::make_unique<NvjpegDecoder>(nvjpeg_library(), runtime_of(gpu, wait), stream, options);
}

void find_nvjpeg(NvjpegFacts& facts) {
  const NvjpegLibrary& library = nvjpeg_library();
  facts.name = library.name();
  facts.file = library.file;
}

}  // namespace penstock
