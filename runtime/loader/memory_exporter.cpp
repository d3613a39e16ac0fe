#include "runtime/loader/memory_exporter.h"

#include <string>

#include "runtime/base/error.h"

namespace penstock {

uint64_t MemoryExporter::gpus_for(PeerId receiver, int32_t gpu_reader) {
  if (gpu_reader == 0) return 0;
  if (linked(receiver) && !options_.links) {
    if (options_.gpus > 0 && executor_.buffer_ranges(0) != nullptr) {
      notice_once("what GPUs export cannot be opened by trainers of rank " + std::to_string(receiver) +
                  ", whose images go by the host; loader.gpu_links: nccl would link them");
    }
    return 0;
  }
  if (offered_.insert(receiver).second) offer(receiver);
  uint64_t gpus = 0;
  for (auto it = exporting_.lower_bound({receiver, gpu_reader, 0}); it != exporting_.end();) {
    const GpuReader reader = *it;
    if (reader.receiver != receiver || reader.reader != gpu_reader) break;
    if (linked(receiver) && !still_linked(reader)) {
      it = exporting_.erase(it);
      continue;
    }
    gpus |= uint64_t{1} << reader.gpu;
    ++it;
  }
  return gpus;
}

void MemoryExporter::offer(PeerId receiver) {
  for (size_t gpu = 0; gpu < options_.gpus; ++gpu) {
    const BufferRanges* const buffer_ranges = executor_.buffer_ranges(gpu);
    if (buffer_ranges == nullptr) continue;
    const ExportOffered offer{static_cast<int32_t>(gpu), buffer_ranges->bytes(), linked(receiver)};
    if (!offer.linked) {
      try {
        endpoint_.send_with(receiver, encode(offer), buffer_ranges->fd());
      } catch (const Error& error) {  // descriptors are short: a loss of speed, and no more
        notice_once("GPUs' memory is not exported, and images go by the host: " + error.message());
      }
    } else if (const std::string why = buffer_ranges->gpu().why_no_links(); why.empty()) {
      endpoint_.send(receiver, encode(offer));
    } else {
      notice_once("GPUs are not linked, and images go by the host: " + why);
    }
  }
}

// A program whose link has ended gets images by the host from now on, and hears why.
bool MemoryExporter::still_linked(const GpuReader& reader) {
  const auto why = links_.ended(reader);
  if (!why) return true;
  links_.close(reader);
  endpoint_.send(reader.receiver, encode(LinkOpened{reader.gpu, reader.reader, {}, *why}));
  notice_once("a link to the GPU of a trainer (rank " + std::to_string(reader.receiver) + ") has ended: " + *why);
  return false;
}

std::optional<ChunkBufferRange> MemoryExporter::export_range(const ChunkWork& work) {
  if (!work.exported) return std::nullopt;
  const BufferRange& buffer_range = work.exported->buffer_range;
  if (!executor_.buffer_ranges(work.exported->gpu)->export_range(buffer_range.id, work.lease.receiver))
    return std::nullopt;
  return ChunkBufferRange{static_cast<int32_t>(work.exported->gpu), buffer_range.id, buffer_range.at,
                          buffer_range.bytes};
}

void MemoryExporter::drop(const ChunkWork& work) const {
  if (work.exported) executor_.buffer_ranges(work.exported->gpu)->drop(work.exported->buffer_range.id);
}

void MemoryExporter::used(PeerId receiver, const ExportUsed& message) {
  (void)buffer_ranges_of(receiver, message.gpu);
  const GpuReader reader{receiver, message.gpu_reader, message.gpu};
  if (message.used) {
    exporting_.insert(reader);
  } else {
    exporting_.erase(reader);
    links_.close(reader);
  }
}

void MemoryExporter::back(PeerId receiver, const BufferRangeReturned& message) const {
  buffer_ranges_of(receiver, message.gpu).give_back(message.id, receiver);
}

void MemoryExporter::asked(PeerId receiver, const LinkAsked& message) {
  (void)buffer_ranges_of(receiver, message.gpu);
  LinkOpened answer{message.gpu, message.gpu_reader, {}, {}};
  try {
    answer.id = links_.open({receiver, message.gpu_reader, message.gpu}, message.identity);
  } catch (const Error& error) {
    answer.problem = error.message();
    notice_once(error.message() + (error.remedy().empty() ? "" : "; " + error.remedy()));
  }
  endpoint_.send(receiver, encode(answer));
}

void MemoryExporter::asked(PeerId receiver, const BufferRangesAsked& message) {
  (void)buffer_ranges_of(receiver, message.gpu);
  links_.send({receiver, message.gpu_reader, message.gpu}, message.runs);
}

void MemoryExporter::lost(PeerId receiver) {
  std::erase_if(exporting_, [&](const GpuReader& reader) { return reader.receiver == receiver; });
  links_.close_all(receiver);
  // By a link nothing is read any more. What is mapped a program may read that outlives its receiver for a while; the
  // job does not, so there is nobody to whom that memory would be exported again.
  for (size_t gpu = 0; gpu < options_.gpus; ++gpu) {
    BufferRanges* const buffer_ranges = executor_.buffer_ranges(gpu);
    // Another loader, whose death the node's ring tells, is reached by nothing.
    const bool by_link = offered_.count(receiver) != 0 && linked(receiver);
    if (buffer_ranges != nullptr) by_link ? buffer_ranges->forget(receiver) : buffer_ranges->leave(receiver);
  }
}

void MemoryExporter::given_up() {
  const std::set<PeerId> before = offered_;
  for (const PeerId receiver : before) {
    if (!linked(receiver)) continue;
    lost(receiver);
    offered_.erase(receiver);
  }
}

void MemoryExporter::notice_once(const std::string& text) {
  if (noticed_.insert(text).second && notice_) notice_(text);
}

BufferRanges& MemoryExporter::buffer_ranges_of(PeerId receiver, int32_t gpu) const {
  BufferRanges* const buffer_ranges = gpu >= 0 && static_cast<size_t>(gpu) < options_.gpus && gpu < 64
                                          ? executor_.buffer_ranges(static_cast<size_t>(gpu))
                                          : nullptr;
  if (buffer_ranges != nullptr) return *buffer_ranges;
  throw Error(
      ErrorKind::peer_lost,
      "rank " + std::to_string(receiver) + " speaks of memory of GPU " + std::to_string(gpu) + ", which exports none",
      "all ranks must run the same version of penstock");
}

}  // namespace penstock
