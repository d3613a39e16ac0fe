#include "runtime/gpu/cuda/cuda_link.h"

#include <cuda_runtime_api.h>

#include <fstream>

#ifdef PENSTOCK_NCCL
#include "runtime/gpu/nccl/nccl_link.h"
#endif

namespace penstock {

std::string cuda_identity(const GpuInfo& gpu) {
  char bus[32] = {};
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  if (boot.empty() || cudaDeviceGetPCIBusId(bus, sizeof bus, gpu.number) != cudaSuccess) return {};
  return boot + " " + bus;
}

#ifdef PENSTOCK_NCCL

namespace {

void check(cudaError_t code, const GpuInfo& gpu, const char* what) {
  if (code == cudaSuccess) return;
  (void)cudaGetLastError();  // the next call must not report this one again
  throw GpuError(GpuFault::failed, "GPU " + std::to_string(gpu.number) + " (" + gpu.name + "): " + what + ": " +
                                       cudaGetErrorString(code));
}

}  // namespace

std::string why_no_cuda_links() {
  try {
    (void)nccl_library();
    return {};
  } catch (const Error& error) {
    return error.message();
  }
}

std::string cuda_link_id() {
  return nccl_link_id(nccl_library());
}

std::unique_ptr<GpuLink> open_cuda_link(const GpuInfo& gpu, const std::string& id, LinkEnd end) {
  NcclCuda cuda;
  cuda.use = [gpu] { check(cudaSetDevice(gpu.number), gpu, "choosing it"); };
  cuda.make_stream = [gpu] {
    cudaStream_t stream = nullptr;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), gpu, "making a CUDA stream");
    return stream;
  };
  cuda.destroy_stream = [](cudaStream_t stream) { (void)cudaStreamDestroy(stream); };
  cuda.stream_of = [](GpuStream& stream) { return static_cast<cudaStream_t>(stream.native()); };
  return std::make_unique<NcclLink>(nccl_library(), std::move(cuda), id, end);
}

#else

std::string why_no_cuda_links() {
  return "this build has no NCCL: nccl.h was not beside the toolkit's headers";
}
std::string cuda_link_id() {
  throw Error(ErrorKind::runtime, why_no_cuda_links());
}
std::unique_ptr<GpuLink> open_cuda_link(const GpuInfo&, const std::string&, LinkEnd) {
  throw Error(ErrorKind::runtime, why_no_cuda_links());
}

#endif

}  // namespace penstock
