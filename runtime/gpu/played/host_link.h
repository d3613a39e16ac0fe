// A link between GPUs that are this CPU (host_gpu.h): a socket, for tests and for looking at what GPUs would be
// told.
//
//   const std::string id = new_host_link_id();
//   auto way = open_host_link(id, LinkEnd::sender, options);       // both on one machine, in any two processes
//
// The id is the name of a Unix-domain socket of the abstract namespace, so nothing is left behind. What is received is
//   read in the GPU's stream, when that is waited for. As with GPUs, a stream never fails for its link's sake: it ends,
//   and the link says that it has failed.
// Thread-safety, ownership, failure: as gpu_link.h.
#pragma once

#include <memory>
#include <string>

#include "runtime/gpu/gpu_link.h"

namespace penstock {

std::string new_host_link_id();
std::unique_ptr<GpuLink> open_host_link(const std::string& id, LinkEnd end, const LinkTimeouts& timeouts = {});

}  // namespace penstock
