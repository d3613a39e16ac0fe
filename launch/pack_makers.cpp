#include "launch/pack_makers.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <system_error>
#include <utility>

#include "runtime/base/error.h"

namespace penstock {
namespace {

constexpr int64_t kWindow = 256;  // samples ahead of the one that is taken next
constexpr auto kLookAgainEvery = std::chrono::milliseconds(200);

}  // namespace

PackMakers::PackMakers(const PackInput& input, const PackContent& content, const DecodeLimits& limits, int threads,
                       int64_t first)
    : input_(input),
      content_(content),
      limits_(limits),
      slots_(static_cast<size_t>(kWindow)),
      next_(first),
      written_(first) {
  const size_t count = threads > 0 ? static_cast<size_t>(threads) : std::max(1U, std::thread::hardware_concurrency());
  try {
    while (pool_.size() < count) pool_.emplace_back([this] { work(); });
  } catch (const std::system_error& problem) {
    // A limit on threads: fewer do it.
    if (pool_.empty()) throw Error(ErrorKind::runtime, std::string("cannot start a thread: ") + problem.what());
  } catch (...) {
    // No destructor will: those that there are would wait for it for ever.
    stop();
    throw;
  }
}

PackMakers::~PackMakers() {
  stop();
}

void PackMakers::stop() {
  {
    const MutexLock lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
}

std::optional<PackedSample> PackMakers::take() {
  const MutexLock lock(mutex_);
  std::optional<PackedSample>& slot = slots_[static_cast<size_t>(written_ % kWindow)];
  if (!slot && !error_) (void)changed_.wait_for(mutex_, kLookAgainEvery);
  if (error_) std::rethrow_exception(error_);
  if (!slot) return {};
  std::optional<PackedSample> out = std::exchange(slot, std::nullopt);
  ++written_;
  held_ -= out->record.size();
  changed_.notify_all();
  return out;
}

int64_t PackMakers::claim() {
  const MutexLock lock(mutex_);
  for (;;) {
    if (stop_ || error_ || next_ >= input_.size()) return -1;
    // The one that is written next is always claimed already, so waiting for it to go ends.
    if (next_ == written_ || (next_ - written_ < kWindow && held_ < kMostHeldBytes)) return next_++;
    (void)changed_.wait_for(mutex_, kLookAgainEvery);
  }
}

void PackMakers::work() {
  try {
    PackMaker maker(input_, content_, limits_);
    for (int64_t index = claim(); index >= 0; index = claim()) {
      PackedSample made = maker.make(index);
      const MutexLock lock(mutex_);
      held_ += made.record.size();
      slots_[static_cast<size_t>(index % kWindow)] = std::move(made);
      changed_.notify_all();
    }
  } catch (...) {
    const MutexLock lock(mutex_);
    if (!error_) error_ = std::current_exception();
    changed_.notify_all();
  }
}

}  // namespace penstock
