// nvJPEG's decoder with a GPU's memory: what nvjpeg_decoder.h leaves to its caller, by CUDA.
//
//   std::unique_ptr<PictureDecoder> decoder = open_nvjpeg(number, stream, wait, options);   // Error: none, and why
//
// Ownership: goes before the CUDA stream. Thread-safety: as picture_decoder.h; the calling thread has chosen the GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>

#include "runtime/gpu/cuda_component.h"
#include "runtime/gpu/picture_decoder.h"

namespace penstock {

// `wait`: until the CUDA stream has done what it was told; GpuError where it fails.
std::unique_ptr<PictureDecoder> open_nvjpeg(int gpu, cudaStream_t stream, const std::function<void()>& wait,
                                            const PictureDecoderOptions& options);
void find_nvjpeg(NvjpegFacts& facts);  // name and file; Error: none, and why

}  // namespace penstock
