// How long leases take from the grant until their chunk is made, and made chunks until they are accepted: which of them
//   are late. Each has a LeaseTimes of its own.
//
//   LeaseTimes times;
//   times.observe(made_ns - granted_ns);
//   if (const int64_t p99 = times.p99_ns(); p99 > 0) deadline = granted + 3 * p99;
//
// Purpose: a loader that stands still is noticed by its leases long before its heartbeats are missed. Leases wait behind
//   others at their loader, so this is not what a chunk costs (cost_model.h).
// How: a histogram with four buckets an octave, so a quantile is at most a quarter too large; all counts are halved at
//   4,096, so that some thousand times are remembered. Integers only.
// Thread-safety: plain values; one owner.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace penstock {

class LeaseTimes {
 public:
  void observe(int64_t took_ns) {
    ++counts_[bucket_of(std::max<int64_t>(took_ns, 1))];
    if (++total_ < kMost) return;
    total_ = 0;
    for (int64_t& count : counts_) total_ += count /= 2;
  }

  // Whether there are enough to speak of one in a hundred.
  bool known() const { return total_ >= kFewest; }

  // 0 until enough are known.
  int64_t p99_ns() const {
    if (!known()) return 0;
    int64_t above = total_ / 100;
    for (size_t bucket = kBuckets; bucket-- > 0;) {
      above -= counts_[bucket];
      if (above < 0) return end_of(bucket);
    }
    return 0;
  }

 private:
  static constexpr int64_t kFewest = 100;
  static constexpr int64_t kMost = 4096;
  static constexpr size_t kBuckets = 4 * 62;

  // The times from 2^e to 2^(e+1) are one octave; the two bits below the leading one choose its bucket.
  static size_t bucket_of(int64_t ns) {
    const auto value = static_cast<uint64_t>(ns);
    const auto octave = static_cast<size_t>(std::bit_width(value) - 1);
    const size_t quarter = octave < 2 ? 0 : (value >> (octave - 2)) & 3;
    return std::min(4 * octave + quarter, kBuckets - 1);
  }
  static int64_t end_of(size_t bucket) {
    const size_t octave = bucket / 4;
    if (octave < 2) return int64_t{2} << octave;
    return (int64_t{5} + static_cast<int64_t>(bucket % 4)) << (octave - 2);
  }

  std::array<int64_t, kBuckets> counts_{};
  int64_t total_ = 0;
};

}  // namespace penstock
