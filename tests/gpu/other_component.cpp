// A CUDA component whose descriptors have other sizes, for cuda_component_test. It has GPUs, if anybody asks.
#include "runtime/gpu/cuda_component.h"

namespace penstock {
namespace {

struct LargerPart : EntropyPart {
  uint64_t more = 0;
};

constexpr CudaComponent other{cuda_component_version(number_of_sizes<LargerPart>()), [](std::string*) { return 1; },
                              nullptr, nullptr};

}  // namespace
}  // namespace penstock

extern "C" const penstock::CudaComponent* penstock_cuda_component() {
  return &penstock::other;
}
