#include "runtime/gpu/buffer_ranges.h"

#include <algorithm>

#include "runtime/gpu/gpu_alignment.h"

namespace penstock {

BufferRanges::BufferRanges(Gpu& gpu, size_t bytes) : gpu_(gpu), exported_(gpu.export_memory(bytes)) {}

const std::byte* BufferRanges::at(const MemoryRange& run) const {
  if (!lies_within(run, exported_->bytes())) {
    throw Error(ErrorKind::peer_lost, "a trainer asked for images outside the memory that a GPU exports",
                "all ranks must run the same version of penstock");
  }
  return exported_->data() + run.at;
}

// Takes the first gap that is wide enough: buffer ranges of a split have one size and come back roughly in order, so
// gaps close.
std::optional<BufferRange> BufferRanges::take(size_t bytes, std::optional<Consumer> whose) {
  MutexLock lock(mutex_);
  uint64_t at = 0;
  for (const auto& [place, out] : out_) {
    if (place - at >= bytes) break;
    at = gpu_aligned(place + out.bytes);
  }
  if (bytes == 0 || at > exported_->bytes() || bytes > exported_->bytes() - at || (whose && too_much(bytes, *whose))) {
    ++figures_.refused;
    return std::nullopt;
  }
  const BufferRange buffer_range{next_id_++, at, bytes, exported_->data() + at};
  out_[at] = {buffer_range.id, bytes, whose, std::nullopt};
  return buffer_range;
}

bool BufferRanges::too_much(uint64_t bytes, Consumer whose) const {
  constexpr uint64_t kTimesWhatIsLeft = 4;
  uint64_t its = bytes;
  uint64_t all = bytes;
  for (const auto& [place, out] : out_) {
    all += out.bytes;
    if (out.whose == whose) its += out.bytes;
  }
  return all > exported_->bytes() || its > kTimesWhatIsLeft * (exported_->bytes() - all);
}

BufferRanges::Places::iterator BufferRanges::find(uint64_t id) {
  return std::find_if(out_.begin(), out_.end(), [&](const auto& item) { return item.second.id == id; });
}

void BufferRanges::drop(uint64_t id) {
  MutexLock lock(mutex_);
  const auto buffer_range = find(id);
  if (buffer_range != out_.end() && !buffer_range->second.exported_to) out_.erase(buffer_range);
}

bool BufferRanges::export_range(uint64_t id, Consumer to) {
  MutexLock lock(mutex_);
  const auto buffer_range = find(id);
  if (buffer_range == out_.end() || buffer_range->second.exported_to) return false;
  if (gone_.count(to) != 0) {
    out_.erase(buffer_range);
    return false;
  }
  buffer_range->second.exported_to = to;
  ++figures_.exported;
  return true;
}

void BufferRanges::give_back(uint64_t id, Consumer from) {
  MutexLock lock(mutex_);
  const auto buffer_range = find(id);
  if (buffer_range != out_.end() && buffer_range->second.exported_to == from) out_.erase(buffer_range);
}

void BufferRanges::forget(Consumer gone) {
  MutexLock lock(mutex_);
  gone_.insert(gone);
  std::erase_if(out_, [&](const auto& item) { return item.second.exported_to == gone; });
}

void BufferRanges::leave(Consumer gone) {
  MutexLock lock(mutex_);
  gone_.insert(gone);
}

BufferRanges::Figures BufferRanges::figures() const {
  MutexLock lock(mutex_);
  Figures figures = figures_;
  figures.out = std::ssize(out_);
  return figures;
}

}  // namespace penstock
