// A kernel that keeps all of a GPU busy for some seconds: to whoever waits behind it, it never ends. It ends by itself,
// by the GPU's clock.
//
//   nvcc -shared -Xcompiler -fPIC -o spin.so spin.cu;    ctypes.CDLL("spin.so").spin(25.0)     # returns at once
#include <cuda_runtime.h>

namespace {

__global__ void wait_until(unsigned long long ns) {
  unsigned long long begun = 0;
  unsigned long long now = 0;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begun));
  do {
    __nanosleep(100000);
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (now - begun < ns);
}

}  // namespace

// 0, or CUDA's error. Blocks with all of a multiprocessor's shared memory and threads: nothing else fits beside them.
extern "C" int spin(double seconds) {
  int device = 0;
  cudaDeviceProp facts{};
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaGetDeviceProperties(&facts, device);
  const size_t shared = facts.sharedMemPerBlockOptin;
  if (error == cudaSuccess) {
    error = cudaFuncSetAttribute(wait_until, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
  }
  cudaStream_t stream = nullptr;
  if (error == cudaSuccess) error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  if (error == cudaSuccess) {
    wait_until<<<static_cast<unsigned>(2 * facts.multiProcessorCount), 1024, shared, stream>>>(
        static_cast<unsigned long long>(seconds * 1e9 / 2));  // two waves
    error = cudaGetLastError();
  }
  return static_cast<int>(error);
}
