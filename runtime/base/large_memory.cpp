#include "runtime/base/large_memory.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "runtime/base/error.h"

namespace penstock {
namespace {

// Decoders ask at the bottom of many calls, which have only the thread in common.
thread_local LargeMemory::Use* current = nullptr;

constexpr int64_t kMegabyte = 1'000'000;

}  // namespace

void large_memory_detail::take(size_t bytes) {
  if (current == nullptr || current->memory_ == nullptr) return;
  current->memory_->take(*current, static_cast<int64_t>(bytes));
}

LargeMemory::Use::Use(LargeMemory* memory) noexcept : memory_(memory), before_(current) {
  current = this;
}

LargeMemory::Use::~Use() {
  current = before_;
  if (held_ != 0) memory_->give_back(*this);
}

bool LargeMemory::may_take(const Use& use, int64_t bytes) const {
  const bool fits = figures_.taken + bytes <= limit_;
  if (use.held_ != 0) return fits || holders_.front() == &use;
  return line_.front() == &use && growing_ == 0 && (fits || holders_.empty());
}

// False: the wait is given up.
bool LargeMemory::wait_for_room(const Use& use, int64_t bytes) {
  const Nanoseconds begun = clock_.now();
  Nanoseconds deadline = begun + wait_limit_;
  uint64_t seen = given_back_;
  bool room = false;
  while (!closed_ && !(room = may_take(use, bytes))) {
    const Nanoseconds now = clock_.now();
    if (std::exchange(seen, given_back_) != given_back_) deadline = now + wait_limit_;
    if (now >= deadline) break;
    changed_.wait_for(mutex_, std::chrono::microseconds((deadline - now) / kMicrosecond + 1));
  }
  figures_.waited_ns += clock_.now() - begun;
  return room;
}

void LargeMemory::take(Use& use, int64_t bytes) {
  MutexLock lock(mutex_);
  const bool first = use.held_ == 0;
  if (first) {
    line_.push_back(&use);
  } else {
    ++growing_;
  }
  const bool room = may_take(use, bytes) || wait_for_room(use, bytes);
  if (first) {
    std::erase(line_, &use);
  } else {
    --growing_;
  }
  changed_.notify_all();  // for who is next in line
  if (!room) {
    if (closed_) throw Error(ErrorKind::runtime, "the loader ends while a large picture waits for memory");
    throw Error(ErrorKind::runtime,
                "a large picture has waited " + std::to_string(wait_limit_ / kSecond) + " s for " +
                    std::to_string(bytes / kMegabyte) + " MB of memory, while other pictures hold " +
                    std::to_string(figures_.taken / kMegabyte) + " MB of " + std::to_string(limit_ / kMegabyte) + " MB",
                "raise loader.memory_gb, or lower loader.threads");
  }
  if (first) {
    holders_.push_back(&use);
    ++figures_.pictures;
  }
  use.held_ += bytes;
  figures_.taken += bytes;
  figures_.most = std::max(figures_.most, figures_.taken);
}

void LargeMemory::give_back(const Use& use) noexcept {
  MutexLock lock(mutex_);
  std::erase(holders_, &use);
  figures_.taken -= use.held_;
  ++given_back_;
  changed_.notify_all();
}

void LargeMemory::set_limit(int64_t limit) {
  MutexLock lock(mutex_);
  limit_ = limit;
  changed_.notify_all();
}

void LargeMemory::close() noexcept {
  MutexLock lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

LargeMemory::Figures LargeMemory::figures() const {
  MutexLock lock(mutex_);
  Figures figures = figures_;
  figures.limit = limit_;
  return figures;
}

}  // namespace penstock
