// Times in a histogram: quantiles of many, within three in a hundred, in little memory.
//
//   WaitTimes waits;
//   waits.add(ns);  waits.quantile(0.99);  waits.mean();  waits.most();
//
// 32 buckets an octave from a microsecond on; below, and for the mean and the largest, exact.
// Thread-safety: values.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "runtime/base/clock.h"

namespace penstock {

class WaitTimes {
 public:
  void add(Nanoseconds time) {
    ++counts_[bucket_of(time)];
    ++count_;
    sum_ += time;
    most_ = std::max(most_, time);
  }
  void add(const WaitTimes& other) {
    for (size_t i = 0; i < kBuckets; ++i) counts_[i] += other.counts_[i];
    count_ += other.count_;
    sum_ += other.sum_;
    most_ = std::max(most_, other.most_);
  }

  int64_t count() const noexcept { return count_; }
  Nanoseconds most() const noexcept { return most_; }
  double mean() const noexcept { return count_ > 0 ? static_cast<double>(sum_) / static_cast<double>(count_) : 0; }
  // The time that this share of all is at or below, as its bucket's end.
  Nanoseconds quantile(double share) const {
    if (count_ == 0) return 0;
    const auto wanted = std::min(count_ - 1, static_cast<int64_t>(share * static_cast<double>(count_)));
    int64_t below = 0;
    for (size_t bucket = 0; bucket < kBuckets; ++bucket) {
      below += counts_[bucket];
      if (below > wanted) return std::min(end_of(bucket), most_);
    }
    return most_;
  }
  double share_above(Nanoseconds time) const {
    int64_t above = 0;
    for (size_t bucket = bucket_of(time) + 1; bucket < kBuckets; ++bucket) above += counts_[bucket];
    return count_ > 0 ? static_cast<double>(above) / static_cast<double>(count_) : 0;
  }

 private:
  static constexpr Nanoseconds kSmallest = 1024;
  static constexpr int kShift = 5;
  static constexpr size_t kInOctave = size_t{1} << kShift;
  static constexpr size_t kBuckets = 1 + 48 * kInOctave;

  static size_t bucket_of(Nanoseconds time) {
    if (time < kSmallest) return 0;
    const auto value = static_cast<uint64_t>(time);
    const int octave = std::bit_width(value) - 1;  // 10 at the least
    const size_t part = (value >> (octave - kShift)) - kInOctave;
    return std::min(kBuckets - 1, 1 + static_cast<size_t>(octave - 10) * kInOctave + part);
  }
  static Nanoseconds end_of(size_t bucket) {
    if (bucket == 0) return kSmallest - 1;
    const size_t octave = 10 + (bucket - 1) / kInOctave;
    const uint64_t part = (bucket - 1) % kInOctave + kInOctave + 1;
    return static_cast<Nanoseconds>((part << (octave - kShift)) - 1);
  }

  std::array<int64_t, kBuckets> counts_{};
  int64_t count_ = 0;
  __extension__ __int128 sum_ = 0;
  Nanoseconds most_ = 0;
};

}  // namespace penstock
