// torch's samplers for C++ programs: SequentialSampler, RandomSampler, DistributedSampler, BatchSampler.
//
//   DistributedSampler sampler(dataset_size, num_replicas, rank, /*shuffle=*/true, /*seed=*/0, /*drop_last=*/false);
//   sampler.set_epoch(3);
//   for (int64_t index : sampler) ...                       // sampler.size() of them
//   for (const std::vector<int64_t>& batch : BatchSampler(sampler, 64, /*drop_last=*/false)) ...
//
// Names, defaults and order are torch's, index for index; size() is __len__. One difference: RandomSampler takes a seed
//   and has set_epoch, and shuffles with randperm under manual_seed(seed + epoch), as DistributedSampler does, where
//   torch's takes a generator whose state depends on what was drawn before. So any epoch can be made again alone.
// begin() makes the epoch's order (O(dataset size) where it is shuffled), as torch's __iter__ does; iterators share
//   it, hold O(1) more, and stay valid after the sampler is gone or its epoch has changed. All are input iterators with
//   std::default_sentinel as end, so they work in range-for and in std::ranges.
// Random access, padding marks and occurrences are the Plan's (plan.h), which agrees with these classes.
// Failure: Error(usage) for an argument out of range, naming it.
// Thread-safety: const members may be called together; set_epoch needs exclusion.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

#include "sampler/permutation.h"

namespace penstock {

// Walks places first, first + stride, ... of an order that repeats from its head, `count` of them.
class IndexIterator {
 public:
  using value_type = int64_t;
  using difference_type = std::ptrdiff_t;
  using iterator_concept = std::input_iterator_tag;

  IndexIterator() = default;
  IndexIterator(Permutation order, int64_t first, int64_t stride, int64_t count)
      : order_(std::move(order)), place_(count > 0 ? first % order_.size() : 0), left_(count) {
    stride_ = count > 0 ? stride % order_.size() : 0;
  }

  int64_t operator*() const noexcept { return order_[place_]; }
  IndexIterator& operator++() noexcept {
    // Both are below the size, so one subtraction wraps; written so that the sum cannot pass 2^63.
    place_ = place_ < order_.size() - stride_ ? place_ + stride_ : place_ - (order_.size() - stride_);
    --left_;
    return *this;
  }
  void operator++(int) noexcept { ++*this; }
  friend bool operator==(const IndexIterator& it, std::default_sentinel_t) noexcept { return it.left_ <= 0; }

 private:
  Permutation order_;
  int64_t place_ = 0;
  int64_t stride_ = 0;
  int64_t left_ = 0;
};

// 0, 1, 2, ...
class SequentialSampler {
 public:
  explicit SequentialSampler(int64_t dataset_size);

  int64_t size() const noexcept { return dataset_size_; }
  IndexIterator begin() const;
  std::default_sentinel_t end() const noexcept { return {}; }

 private:
  int64_t dataset_size_;
};

// Every sample once, in the order torch.randperm gives under manual_seed(seed + epoch).
class RandomSampler {
 public:
  explicit RandomSampler(int64_t dataset_size, uint64_t seed = 0);

  void set_epoch(int64_t epoch);
  int64_t size() const noexcept { return dataset_size_; }
  IndexIterator begin() const;
  std::default_sentinel_t end() const noexcept { return {}; }

 private:
  int64_t dataset_size_;
  uint64_t seed_;
  int64_t epoch_ = 0;
};

// The share of one replica: places rank, rank + num_replicas, ... of the epoch's order, which is first padded from its
// head (as often as needed), or with drop_last cut, to a multiple of num_replicas.
class DistributedSampler {
 public:
  DistributedSampler(int64_t dataset_size, int64_t num_replicas, int64_t rank, bool shuffle = true, uint64_t seed = 0,
                     bool drop_last = false);

  void set_epoch(int64_t epoch);
  int64_t size() const noexcept { return num_samples_; }
  int64_t total_size() const noexcept { return num_samples_ * num_replicas_; }
  IndexIterator begin() const;
  std::default_sentinel_t end() const noexcept { return {}; }

 private:
  int64_t dataset_size_;
  int64_t num_replicas_;
  int64_t rank_;
  bool shuffle_;
  uint64_t seed_;
  int64_t num_samples_ = 0;  // of this replica
  int64_t epoch_ = 0;
};

void check_batch_size(int64_t batch_size);  // Error(usage) unless it is positive

// Groups what a sampler (any range of int64_t with size()) gives into batches; the last may be shorter, unless
// drop_last. The sampler is copied, so a later set_epoch is called on sampler(), not on the original.
template <class Sampler>
class BatchSampler {
 public:
  BatchSampler(Sampler sampler, int64_t batch_size, bool drop_last)
      : sampler_(std::move(sampler)), batch_size_(batch_size), drop_last_(drop_last) {
    check_batch_size(batch_size);
  }

  class Iterator {
   public:
    using value_type = std::vector<int64_t>;
    using difference_type = std::ptrdiff_t;
    using iterator_concept = std::input_iterator_tag;

    explicit Iterator(const BatchSampler& batches) : next_(batches.sampler_.begin()), batch_size_(batches.batch_size_) {
      left_ = batches.drop_last_ ? batches.size() * batches.batch_size_ : batches.sampler_.size();
      fill();
    }

    const std::vector<int64_t>& operator*() const noexcept { return batch_; }
    Iterator& operator++() {
      fill();
      return *this;
    }
    void operator++(int) { fill(); }
    friend bool operator==(const Iterator& it, std::default_sentinel_t) noexcept { return it.batch_.empty(); }

   private:
    void fill() {
      batch_.clear();
      for (; left_ > 0 && static_cast<int64_t>(batch_.size()) < batch_size_; --left_, ++next_) {
        batch_.push_back(*next_);
      }
    }

    decltype(std::declval<const Sampler&>().begin()) next_;
    int64_t batch_size_;
    int64_t left_ = 0;
    std::vector<int64_t> batch_;
  };

  Sampler& sampler() noexcept { return sampler_; }
  int64_t size() const noexcept {
    const int64_t samples = static_cast<int64_t>(sampler_.size());
    return samples / batch_size_ + (!drop_last_ && samples % batch_size_ != 0 ? 1 : 0);
  }
  Iterator begin() const { return Iterator(*this); }
  std::default_sentinel_t end() const noexcept { return {}; }

 private:
  Sampler sampler_;
  int64_t batch_size_;
  bool drop_last_;
};

}  // namespace penstock
