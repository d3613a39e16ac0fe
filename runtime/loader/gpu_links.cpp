#include "runtime/loader/gpu_links.h"

#include "runtime/base/error.h"

namespace penstock {

std::string GpuLinks::open(const GpuReader& reader, const std::string& identity) {
  links_.erase(reader);
  Gpu& gpu = executor_.buffer_ranges(static_cast<size_t>(reader.gpu))->gpu();
  if (!identity.empty() && identity == gpu.identity()) {
    throw Error(ErrorKind::runtime,
                "GPU " + std::to_string(gpu.info().number) +
                    " of the loader is the trainer's own, and a GPU is linked to others alone",
                "give loaders and trainers GPUs of their own, or let them share memory (transport: auto or shm)");
  }
  std::string id = gpu.link_id();
  links_[reader] = gpu.link(id, LinkEnd::sender);
  return id;
}

std::optional<std::string> GpuLinks::ended(const GpuReader& reader) const {
  const auto it = links_.find(reader);
  if (it == links_.end()) return "it was never opened";
  if (it->second->state() != LinkState::failed) return std::nullopt;
  return it->second->failure();
}

void GpuLinks::send(const GpuReader& reader, const std::vector<MemoryRange>& runs) {
  const auto it = links_.find(reader);
  if (it == links_.end()) return;  // it ended, and the program has not heard of it yet: its end of it has, or will
  const BufferRanges& buffer_ranges = *executor_.buffer_ranges(static_cast<size_t>(reader.gpu));
  for (const MemoryRange& run : runs) it->second->send(buffer_ranges.at(run), run.bytes);
}

void GpuLinks::close_all(PeerId receiver) {
  std::erase_if(links_, [&](const auto& item) { return item.first.receiver == receiver; });
}

}  // namespace penstock
