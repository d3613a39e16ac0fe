#include "runtime/sample/substitutes.h"

#include <algorithm>
#include <cmath>

#include "runtime/transforms/draw.h"

namespace penstock {
namespace {

// Substitutes draw from a place in the pipeline that no transform has.
constexpr uint16_t kSubstitutePosition = 0xFFFF;
constexpr int64_t kMoreDraws = 64;  // than there are samples: small data sets seldom need the order
constexpr int64_t kFewest = 1024;   // tries that nearly every job is given, whatever bad_samples says

// floor(u * n / 2^64), which DrawStream::scale_to() is for numbers of 32 bits.
int64_t scale_to(uint64_t u, int64_t n) noexcept {
  __extension__ using Wide = unsigned __int128;
  return static_cast<int64_t>(static_cast<uint64_t>((Wide{u} * static_cast<uint64_t>(n)) >> 64));
}

}  // namespace

int64_t substitute_index(uint64_t seed, int64_t epoch, int64_t index, uint32_t attempt, int64_t dataset_size) {
  // A draw's number has 16 bits; those above them stand where a sample's occurrence does, which is not drawn for here.
  const DrawKey key{seed, static_cast<uint32_t>(epoch), static_cast<uint64_t>(index),
                    static_cast<uint16_t>(attempt >> 16)};
  DrawStream draws(key, kSubstitutePosition, static_cast<uint16_t>(attempt));
  return scale_to(draws.bits(), dataset_size);
}

// Where a share p is unusable, all of n tries are with a chance of p^n <= e^(-n (1 - p)). The share that a job may have
// is known from bad_samples but for the number of replicas, each of which may have max_count; kFewest is for those.
int64_t substitutes_tried(const BadSampleSpec& bad_samples, int64_t dataset_size) {
  const int64_t others = dataset_size - 1;
  const double share = std::max(bad_samples.max_fraction,
                                static_cast<double>(bad_samples.max_count) / static_cast<double>(dataset_size));
  if (!(share < 1)) return others;
  const double tries = std::ceil(128 / (1 - share));
  if (tries >= static_cast<double>(others)) return others;
  return std::min(others, std::max(kFewest, static_cast<int64_t>(tries)));
}

Substitutes::Substitutes(uint64_t seed, int64_t epoch, int64_t index, int64_t dataset_size,
                         const BadSampleSpec& bad_samples)
    : seed_(seed),
      epoch_(epoch),
      index_(index),
      size_(dataset_size),
      most_(substitutes_tried(bad_samples, dataset_size)),
      seen_{index} {}

std::optional<int64_t> Substitutes::next() {
  if (given_ >= most_) return std::nullopt;
  // Draws beyond 2^32 would repeat: of larger data sets not all samples are drawn, and the order has the rest.
  const int64_t draws = std::min<int64_t>(size_ + kMoreDraws, int64_t{1} << 32);
  while (draws_ < draws) {
    const int64_t drawn = substitute_index(seed_, epoch_, index_, static_cast<uint32_t>(draws_++), size_);
    if (!seen_.insert(drawn).second) continue;
    ++given_;
    return drawn;
  }
  while (++steps_ < size_) {
    const int64_t following = steps_ < size_ - index_ ? index_ + steps_ : index_ + steps_ - size_;
    if (!seen_.insert(following).second) continue;
    ++given_;
    return following;
  }
  return std::nullopt;
}

void UnusableSamples::add(int64_t epoch, uint16_t occurrence, int64_t index) {
  MutexLock lock(mutex_);
  // The oldest epoch goes first; where the room is this one's alone, it stays as it is.
  while (count_ >= kMost) {
    const auto oldest = of_.begin();
    if (oldest->first >= std::pair(epoch, occurrence)) return;
    count_ -= oldest->second.size();
    of_.erase(oldest);
  }
  count_ += of_[{epoch, occurrence}].insert(index).second ? 1 : 0;
}

bool UnusableSamples::has(int64_t epoch, uint16_t occurrence, int64_t index) const {
  MutexLock lock(mutex_);
  const auto found = of_.find({epoch, occurrence});
  return found != of_.end() && found->second.count(index) != 0;
}

}  // namespace penstock
