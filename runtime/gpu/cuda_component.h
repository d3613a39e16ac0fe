// The seam between penstock and its CUDA component (libpenstock_cuda.so), which is loaded at run time: nothing else in
// the project links CUDA or sees its headers, so one build of everything else serves machines with and without GPUs.
//
//   int n = cuda_gpus();                                // loads it; Error where there is none, or no driver
//   std::unique_ptr<Gpu> gpu = open_cuda_gpu(0);
//
// It is looked for beside the library (or program) that this is in, then in the system's folders; cuda/ is its source.
// Failure: Error(runtime): not built, no driver, no such GPU; with what to do.
// Thread-safety: from any thread. The component stays loaded.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/gpu/gpu.h"

namespace penstock {

struct CudaGpuFacts {
  std::string name;
  std::string bus;  // "0000:3b:00.0", as nvidia-smi and lspci have it
  int64_t memory_bytes = 0;
  int major = 0;  // compute capability
  int minor = 0;
  std::vector<int> peers;  // GPUs whose memory it reaches without a copy through this machine's
};

// What can be asked without making a context on any GPU.
struct CudaFacts {
  int driver = 0;     // newest CUDA that the driver knows, 13000 for 13.0; 0: there is no driver
  int runtime = 0;    // that the component was built with
  std::string error;  // why no GPU can be used
  std::vector<CudaGpuFacts> gpus;
};

// nvJPEG, as the component finds it.
struct NvjpegFacts {
  std::string name;  // "nvJPEG 13.0.4"; empty: there is none
  std::string file;
  std::string error;  // why it cannot be used: at all, or on this GPU
  int engines = 0;
};

// The component's one symbol, found by name.
struct CudaComponent {
  uint64_t version = 0;
  // -1, and why.
  int (*count)(std::string* error) = nullptr;
  // nullptr, and why.
  Gpu* (*open)(int number, std::string* error) = nullptr;
  void (*describe)(CudaFacts* facts) = nullptr;
  // On this GPU, where it makes a context; -1: on none.
  void (*describe_nvjpeg)(int number, NvjpegFacts* facts) = nullptr;
};
// The version of this struct, Gpu and batch_layout.h together. The upper half is counted by hand, for what sizes do not
// show.
constexpr uint64_t cuda_component_version(uint32_t sizes) {
  return uint64_t{6} << 32 | sizes;
}
inline constexpr uint64_t kCudaComponentVersion = cuda_component_version(kBatchLayoutSizes);
inline constexpr const char* kCudaComponentEntry = "penstock_cuda_component";
using CudaComponentFunction = const CudaComponent* (*)();

int cuda_gpus();
CudaFacts cuda_facts();  // Error where there is no component
NvjpegFacts nvjpeg_facts(int number);
std::unique_ptr<Gpu> open_cuda_gpu(int number);

}  // namespace penstock
