#include "runtime/gpu/cuda/cuda_link.h"

#include <cuda_runtime_api.h>

#include <fstream>

#ifdef PENSTOCK_NCCL
#include "runtime/gpu/nccl/nccl_link.h"
#endif

namespace penstock {

std::string cuda_identity(const CardInfo& card) {
  char bus[32] = {};
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  if (boot.empty() || cudaDeviceGetPCIBusId(bus, sizeof bus, card.number) != cudaSuccess) return {};
  return boot + " " + bus;
}

#ifdef PENSTOCK_NCCL

namespace {

void check(cudaError_t code, const CardInfo& card, const char* what) {
  if (code == cudaSuccess) return;
  (void)cudaGetLastError();  // the next call must not report this one again
  throw CardError(CardFault::failed, "card " + std::to_string(card.number) + " (" + card.name + "): " + what + ": " +
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

std::string cuda_link_id() { return nccl_link_id(nccl_library()); }

std::unique_ptr<CardLink> open_cuda_link(const CardInfo& card, const std::string& id, LinkEnd end) {
  NcclCuda cuda;
  cuda.use = [card] { check(cudaSetDevice(card.number), card, "choosing it"); };
  cuda.make_stream = [card] {
    cudaStream_t stream = nullptr;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), card, "making a stream");
    return stream;
  };
  cuda.destroy_stream = [](cudaStream_t stream) { (void)cudaStreamDestroy(stream); };
  cuda.stream_of = [](CardStream& stream) { return static_cast<cudaStream_t>(stream.native()); };
  return std::make_unique<NcclLink>(nccl_library(), std::move(cuda), id, end);
}

#else

std::string why_no_cuda_links() { return "this build has no NCCL: nccl.h was not beside the toolkit's headers"; }
std::string cuda_link_id() { throw Error(ErrorKind::runtime, why_no_cuda_links()); }
std::unique_ptr<CardLink> open_cuda_link(const CardInfo&, const std::string&, LinkEnd) {
  throw Error(ErrorKind::runtime, why_no_cuda_links());
}

#endif

}  // namespace penstock
