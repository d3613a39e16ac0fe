#include "runtime/decode/jpeg/learned_index.h"

#include <utility>

namespace penstock {
namespace {

// What an entry takes besides its points: a map's node and bucket, a shared pointer's counts, three allocations.
constexpr int64_t kEntryOverhead = 128;

}  // namespace

LearnedFigures LearnedMemory::figures() const noexcept {
  return {photos_.load(std::memory_order_relaxed), bytes_.load(std::memory_order_relaxed),
          used_.load(std::memory_order_relaxed)};
}

void LearnedMemory::set_limit(int64_t bytes) noexcept {
  limit_.store(bytes, std::memory_order_relaxed);
}

// False: there is no room, and nothing changes.
bool LearnedMemory::change(int64_t bytes, int64_t photos) noexcept {
  const int64_t after = bytes_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  if (bytes > 0 && after > limit_.load(std::memory_order_relaxed)) {
    bytes_.fetch_sub(bytes, std::memory_order_relaxed);
    return false;
  }
  photos_.fetch_add(photos, std::memory_order_relaxed);
  return true;
}

LearnedIndexes::LearnedIndexes(std::shared_ptr<LearnedMemory> memory) : memory_(std::move(memory)) {}

LearnedIndexes::~LearnedIndexes() {
  clear();
}

void LearnedIndexes::clear() {
  for (Shard& shard : shards_) {
    MutexLock lock(shard.mutex);
    for (const auto& [sample, known] : shard.known) memory_->change(-cost(*known), -1);
    shard.known.clear();
  }
}

int64_t LearnedIndexes::cost(const Known& known) {
  return static_cast<int64_t>(sizeof(Known) + known.index.bytes()) + kEntryOverhead;
}

std::shared_ptr<const LearnedIndexes::Known> LearnedIndexes::find(int64_t sample, EncodedView bytes) {
  Shard& shard = shard_of(sample);
  std::shared_ptr<const Known> known;
  {
    MutexLock lock(shard.mutex);
    const auto it = shard.known.find(sample);
    if (it == shard.known.end()) return nullptr;
    known = it->second;
    if (memory_->over()) {
      memory_->change(-cost(*known), -1);
      shard.known.erase(it);
    }
  }
  if (known->sum != hash128(bytes)) return nullptr;
  memory_->used_.fetch_add(1, std::memory_order_relaxed);
  return known;
}

void LearnedIndexes::keep(int64_t sample, EncodedView bytes, const std::shared_ptr<const Known>& found,
                          SideIndex index) {
  // Copies have no spare room; an index that grew by single points has.
  auto fresh = std::make_shared<Known>(Known{found != nullptr ? found->sum : hash128(bytes), std::as_const(index)});
  Shard& shard = shard_of(sample);
  MutexLock lock(shard.mutex);
  const auto it = shard.known.find(sample);
  if (it == shard.known.end()) {
    if (memory_->change(cost(*fresh), 1)) shard.known.emplace(sample, std::move(fresh));
    return;
  }
  if (it->second->sum == fresh->sum && it->second->index.size() >= fresh->index.size()) return;
  if (memory_->change(cost(*fresh) - cost(*it->second), 0)) it->second = std::move(fresh);
}

}  // namespace penstock
