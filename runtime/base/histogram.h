// Many times (or sizes) in little memory: their distribution within six in a hundred, their mean and largest exactly.
//
//   Histogram waits;
//   waits.add(ns);  waits.quantile(0.99);  waits.mean();  waits.most();
//   waits.add(other);                       // of another rank
//   waits.buckets();                        // those that are not empty, to write down; Histogram::from(...) reads them
//
// 16 buckets an octave from 1,024 on; all that is smaller is one bucket, and so is what is larger than 2^57.
// Thread-safety: values. Failure: from() gives nothing for buckets that are none.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace penstock {

class Histogram {
 public:
  void add(int64_t value) {
    const size_t bucket = bucket_of(value);
    if (bucket >= counts_.size()) counts_.resize(bucket + 1, 0);
    ++counts_[bucket];
    ++count_;
    sum_ += static_cast<double>(value);
    most_ = std::max(most_, value);
  }
  void add(const Histogram& other) {
    counts_.resize(std::max(counts_.size(), other.counts_.size()), 0);
    for (size_t i = 0; i < other.counts_.size(); ++i) counts_[i] += other.counts_[i];
    count_ += other.count_;
    sum_ += other.sum_;
    most_ = std::max(most_, other.most_);
  }

  int64_t count() const noexcept { return count_; }
  int64_t most() const noexcept { return most_; }
  double sum() const noexcept { return sum_; }
  double mean() const noexcept { return count_ > 0 ? sum_ / static_cast<double>(count_) : 0; }
  // About: of the middles of its buckets, from the true mean.
  double variance() const {
    double sum = 0;
    for (const auto& [number, count] : buckets()) {
      const auto bucket = static_cast<size_t>(number);
      const int64_t begin = bucket == 0 ? 0 : end_of(bucket - 1) + 1;
      const double middle = static_cast<double>(begin + std::min(end_of(bucket), most_)) / 2;
      sum += static_cast<double>(count) * (middle - mean()) * (middle - mean());
    }
    return count_ > 0 ? sum / static_cast<double>(count_) : 0;
  }
  // What this share of all is at or below, as its bucket's end.
  int64_t quantile(double share) const {
    if (count_ == 0) return 0;
    const auto wanted = std::min(count_ - 1, static_cast<int64_t>(share * static_cast<double>(count_)));
    int64_t below = 0;
    for (size_t bucket = 0; bucket < counts_.size(); ++bucket) {
      below += counts_[bucket];
      if (below > wanted) return std::min(end_of(bucket), most_);
    }
    return most_;
  }
  // (share of all that are at most the value, value): for Distribution::empirical(). Empty: nothing was added.
  std::vector<std::pair<double, int64_t>> quantiles() const {
    std::vector<std::pair<double, int64_t>> points;
    int64_t below = 0;
    for (size_t bucket = 0; bucket < counts_.size(); ++bucket) {
      if (counts_[bucket] == 0) continue;
      const double before = static_cast<double>(below) / static_cast<double>(count_);
      points.emplace_back(before, std::min(bucket == 0 ? 0 : end_of(bucket - 1) + 1, most_));
      below += counts_[bucket];
      points.emplace_back(static_cast<double>(below) / static_cast<double>(count_), std::min(end_of(bucket), most_));
    }
    return points;
  }

  struct Bucket {
    int64_t number = 0;
    int64_t count = 0;
  };
  std::vector<Bucket> buckets() const {
    std::vector<Bucket> list;
    for (size_t i = 0; i < counts_.size(); ++i) {
      if (counts_[i] > 0) list.push_back({static_cast<int64_t>(i), counts_[i]});
    }
    return list;
  }
  static std::optional<Histogram> from(const std::vector<Bucket>& buckets, double sum, int64_t most) {
    if (!(sum >= 0) || most < 0 || buckets.size() > kBuckets) return std::nullopt;
    Histogram it;
    for (const auto& [number, count] : buckets) {
      constexpr int64_t kMost = int64_t{1} << 50;  // of a bucket, so that sums fit
      if (number < 0 || number >= static_cast<int64_t>(kBuckets) || count <= 0 || count > kMost) return std::nullopt;
      it.counts_.resize(std::max(it.counts_.size(), static_cast<size_t>(number) + 1), 0);
      it.counts_[static_cast<size_t>(number)] += count;
      it.count_ += count;
    }
    it.sum_ = sum;
    it.most_ = most;
    return it;
  }

 private:
  static constexpr int64_t kSmallest = 1024;
  static constexpr int kFirstOctave = 10;
  static constexpr int kShift = 4;
  static constexpr size_t kInOctave = size_t{1} << kShift;
  static constexpr size_t kBuckets = 1 + 47 * kInOctave;

  static size_t bucket_of(int64_t value) {
    if (value < kSmallest) return 0;
    const auto bits = static_cast<uint64_t>(value);
    const int octave = std::bit_width(bits) - 1;
    const size_t part = (bits >> (octave - kShift)) - kInOctave;
    return std::min(kBuckets - 1, 1 + static_cast<size_t>(octave - kFirstOctave) * kInOctave + part);
  }
  static int64_t end_of(size_t bucket) {
    if (bucket == 0) return kSmallest - 1;
    const size_t octave = static_cast<size_t>(kFirstOctave) + (bucket - 1) / kInOctave;
    const uint64_t part = (bucket - 1) % kInOctave + kInOctave + 1;
    return static_cast<int64_t>((part << (octave - kShift)) - 1);
  }

  std::vector<int64_t> counts_;  // as far as the largest value
  int64_t count_ = 0;
  double sum_ = 0;
  int64_t most_ = 0;
};

}  // namespace penstock
