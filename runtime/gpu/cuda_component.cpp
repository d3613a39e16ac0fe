#include "runtime/gpu/cuda_component.h"

#include <dlfcn.h>

#include "runtime/base/component.h"

namespace penstock {
namespace {

const CudaComponent& component() {
  std::string why;
  void* const library = open_component("libpenstock_cuda.so", RTLD_NOW | RTLD_LOCAL, why);
  if (library == nullptr) {
    throw Error(
        ErrorKind::runtime, "cannot load the CUDA component: " + why,
        "build with -DPENSTOCK_CUDA=ON (launch/install_cuda.sh fetches a compiler), or say loader.executor: cpu");
  }
  auto* const entry = reinterpret_cast<CudaComponentFunction>(::dlsym(library, kCudaComponentEntry));
  if (entry == nullptr || entry()->version != kCudaComponentVersion) {
    throw Error(ErrorKind::runtime, "the CUDA component found does not belong to this version of penstock",
                "install both from one build");
  }
  return *entry();
}

}  // namespace

int cuda_gpus() {
  std::string error;
  const int count = component().count(&error);
  if (count < 0) {
    throw Error(ErrorKind::runtime, "no GPU can be used: " + error,
                "check the driver with nvidia-smi, or say loader.executor: cpu");
  }
  return count;
}

CudaFacts cuda_facts() {
  CudaFacts facts;
  component().describe(&facts);
  return facts;
}

NvjpegFacts nvjpeg_facts(int number) {
  NvjpegFacts facts;
  component().describe_nvjpeg(number, &facts);
  return facts;
}

std::unique_ptr<Gpu> open_cuda_gpu(int number) {
  const int count = cuda_gpus();
  if (number < 0 || number >= count) {
    throw Error(ErrorKind::runtime,
                "there is no GPU " + std::to_string(number) + ": the driver counts " + std::to_string(count),
                "see CUDA_VISIBLE_DEVICES and nvidia-smi, or say loader.executor: cpu");
  }
  std::string error;
  Gpu* const gpu = component().open(number, &error);
  if (gpu == nullptr) {
    throw Error(ErrorKind::runtime, "cannot open GPU " + std::to_string(number) + ": " + error,
                "another program may hold it alone (nvidia-smi tells); or say loader.executor: cpu");
  }
  return std::unique_ptr<Gpu>(gpu);
}

}  // namespace penstock
