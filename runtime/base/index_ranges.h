// Which samples of a data set: ranges of their indices, from the first to the last. What a loader says of the data that
// lies on its node's disks.
//
//   IndexRanges here;
//   for (int64_t i = 0; i < size; ++i) if (is_here(i)) here.add(i);    // in order
//   here.contains(17);   here.samples();   here.bounds();              // [0, 500, 1000, 1500]: 0..499 and 1000..1499
//   IndexRanges theirs(bounds_from_a_peer, size);                      // Error(peer_lost) where they cannot be
//
// Cost: 16 bytes a range, whatever it holds; contains() is a binary search.
// Thread-safety: as a vector's. Failure: as said above; add() of an index that is not beyond all others is a fault of
//   the caller's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace penstock {

class IndexRanges {
 public:
  IndexRanges() = default;  // of no sample
  explicit IndexRanges(std::vector<int64_t> bounds, int64_t size);
  static IndexRanges all(int64_t size) { return IndexRanges({0, size}, size); }

  void add(int64_t index);
  bool contains(int64_t index) const noexcept;
  int64_t samples() const noexcept;
  size_t count() const noexcept { return bounds_.size() / 2; }
  // Begin and end of each range, in order; neighbours do not touch.
  const std::vector<int64_t>& bounds() const noexcept { return bounds_; }

  friend bool operator==(const IndexRanges&, const IndexRanges&) = default;

 private:
  std::vector<int64_t> bounds_;
};

}  // namespace penstock
