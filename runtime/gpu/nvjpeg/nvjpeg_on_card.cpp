#include "runtime/gpu/nvjpeg/nvjpeg_on_card.h"

#include <cuda_runtime_api.h>

#include "runtime/gpu/nvjpeg/nvjpeg_decoder.h"

namespace penstock {
namespace {

// The library may call from threads that have chosen another card, and the lane's may be one that ends it.
template <class Call>
void on_card(int card, Call call) {
  if (cudaSetDevice(card) != cudaSuccess || call() != cudaSuccess) (void)cudaGetLastError();
}

NvjpegRuntime runtime_of(int card, const std::function<void()>& wait) {
  NvjpegRuntime runtime;
  runtime.allocate = [card](size_t bytes) {
    void* memory = nullptr;
    on_card(card, [&] { return cudaMalloc(&memory, bytes); });
    return memory;
  };
  runtime.release = [card](void* memory) { on_card(card, [&] { return cudaFree(memory); }); };
  runtime.allocate_pinned = [card](size_t bytes) {
    void* memory = nullptr;
    on_card(card, [&] { return cudaHostAlloc(&memory, bytes, cudaHostAllocPortable); });
    return memory;
  };
  runtime.release_pinned = [card](void* memory) { on_card(card, [&] { return cudaFreeHost(memory); }); };
  runtime.wait = wait;
  return runtime;
}

}  // namespace

std::unique_ptr<PictureDecoder> open_nvjpeg(int card, cudaStream_t stream, const std::function<void()>& wait,
                                            const PictureDecoderOptions& options) {
  return std::make_unique<NvjpegDecoder>(nvjpeg_library(), runtime_of(card, wait), stream, options);
}

void find_nvjpeg(NvjpegFacts& facts) {
  const NvjpegLibrary& library = nvjpeg_library();
  facts.name = library.name();
  facts.file = library.file;
}

}  // namespace penstock
