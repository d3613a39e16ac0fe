// An epoch's order that is not a permutation: read from a file, drawn with repetitions, or made by the user's program.
//
//   auto order = GivenOrder::make(indices, dataset_size, "order.npy");   // Error(dataset) naming place and value
//   Plan plan(spec, epoch, order);                                       // spec.dataset_size is order->size()
//
// Knows what a Plan needs of it: the index at a place, and how often that index stood before, also in the rounds by
//   which padding repeats the order.
// Memory: 8 bytes a place; where indices repeat, 4 more a place and 4 a sample of the dataset.
// Failure: Error(dataset) for an index outside the dataset; Error(config) where an index stands more than 65,536 times.
// Thread-safety: immutable once made.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace penstock {

class GivenOrder {
 public:
  // `source` names where the indices come from, in messages: a file, "the program's sampler".
  static std::shared_ptr<const GivenOrder> make(std::vector<int64_t> indices, int64_t dataset_size,
                                                const std::string& source);

  int64_t size() const noexcept { return static_cast<int64_t>(indices_.size()); }
  // `place` in [0, size()).
  int64_t operator[](int64_t place) const noexcept { return indices_[static_cast<size_t>(place)]; }
  // How often the index at `place` stood before it, in round `round` over the order.
  int64_t occurrence(int64_t place, int64_t round) const noexcept {
    if (before_.empty()) return round;
    const auto index = static_cast<size_t>(indices_[static_cast<size_t>(place)]);
    return int64_t{before_[static_cast<size_t>(place)]} + round * int64_t{times_[index]};
  }
  int64_t largest_count() const noexcept { return largest_count_; }  // of one index in the order; 1: no repetition

 private:
  std::vector<int64_t> indices_;
  std::vector<uint32_t> before_;  // by place; empty where no index repeats
  std::vector<uint32_t> times_;   // by index; empty as well
  int64_t largest_count_ = 1;
};

// Error(dataset) naming `source`, the place and the value of the first index outside [0, dataset_size).
void check_indices(const std::vector<int64_t>& indices, int64_t dataset_size, const std::string& source);

}  // namespace penstock
