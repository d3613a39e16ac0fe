#include "runtime/card/host_card.h"

#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "runtime/base/thread_annotations.h"
#include "runtime/card/run_on_host.h"

namespace penstock {
namespace {

class HostStream final : public CardStream {
 public:
  ~HostStream() override { HostStream::wait(0); }
  void upload(std::byte* to, const std::byte* from, size_t bytes) override { copy(to, from, bytes, times_.upload_ns); }
  void download(std::byte* to, const std::byte* from, size_t bytes) override {
    copy(to, from, bytes, times_.download_ns);
  }
  void launch(std::byte* memory, const StageLaunch& launch) override {
    work_.push_back({[memory, launch] { run_on_host(reinterpret_cast<uint8_t*>(memory), launch); },
                     &times_.stage_ns[static_cast<size_t>(launch.stage)]});
  }
  void wait(Nanoseconds) override {
    const MonotonicClock clock;
    Nanoseconds begun = clock.now();
    for (const Work& one : work_) {
      one.run();
      const Nanoseconds now = clock.now();
      *one.time += now - std::exchange(begun, now);
    }
    work_.clear();
  }
  CardTimes take_times() override { return std::exchange(times_, {}); }

 private:
  struct Work {
    std::function<void()> run;
    Nanoseconds* time;
  };
  void copy(std::byte* to, const std::byte* from, size_t bytes, Nanoseconds& time) {
    work_.push_back({[to, from, bytes] { std::memcpy(to, from, bytes); }, &time});
  }

  std::vector<Work> work_;
  CardTimes times_;
};

class HostCard final : public Card {
 public:
  HostCard(int number, size_t memory_bytes) {
    info_.number = number;
    info_.name = "this CPU";
    info_.memory_bytes = static_cast<int64_t>(memory_bytes);
  }
  const CardInfo& info() const noexcept override { return info_; }

  std::byte* allocate(size_t bytes, CardMemory where) override {
    MutexLock lock(mutex_);
    const size_t counted = where == CardMemory::device ? bytes : 0;
    void* const memory = used_ + counted > static_cast<size_t>(info_.memory_bytes)
                             ? nullptr
                             : std::aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (memory == nullptr) {
      throw CardError(CardFault::out_of_memory, "card " + std::to_string(info_.number) + " (" + info_.name +
                                                    "): allocating " + std::to_string(bytes) + " bytes: out of memory");
    }
    used_ += counted;
    blocks_[memory] = counted;
    return static_cast<std::byte*>(memory);
  }
  void release(std::byte* memory, CardMemory) noexcept override {
    MutexLock lock(mutex_);
    const auto block = blocks_.find(memory);
    used_ -= block->second;
    blocks_.erase(block);
    std::free(memory);
  }
  std::unique_ptr<CardStream> stream() override { return std::make_unique<HostStream>(); }

 private:
  CardInfo info_;
  Mutex mutex_;
  size_t used_ PENSTOCK_GUARDED_BY(mutex_) = 0;
  std::map<void*, size_t> blocks_ PENSTOCK_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<Card> open_host_card(int number, size_t memory_bytes) {
  return std::make_unique<HostCard>(number, memory_bytes);
}

}  // namespace penstock
