// Links between GPUs (../gpu_link.h) for CUDA's: NCCL's, where this build had its header and the machine has the
// library.
//
//   std::string why = why_no_cuda_links();              // empty: there are some
//   std::unique_ptr<GpuLink> way = open_cuda_link(info, cuda_link_id(), LinkEnd::sender);
//
// Failure: Error(runtime), with what to do, where there is no NCCL; GpuError, as gpu_link.h. Thread-safety: any
//   thread.
#pragma once

#include <memory>
#include <string>

#include "runtime/gpu/gpu.h"

namespace penstock {

// Where on which machine, for all of its processes alike: the bus, and the id of the kernel's boot.
std::string cuda_identity(const GpuInfo& gpu);

std::string why_no_cuda_links();
std::string cuda_link_id();
std::unique_ptr<GpuLink> open_cuda_link(const GpuInfo& gpu, const std::string& id, LinkEnd end);

}  // namespace penstock
