#include "runtime/base/index_ranges.h"

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include "runtime/base/error.h"

namespace penstock {

IndexRanges::IndexRanges(std::vector<int64_t> bounds, int64_t size) : bounds_(std::move(bounds)) {
  const bool inside = bounds_.empty() || (bounds_.front() >= 0 && bounds_.back() <= size);
  const bool ascends = std::adjacent_find(bounds_.begin(), bounds_.end(), std::greater_equal<>()) == bounds_.end();
  if (bounds_.size() % 2 == 0 && inside && ascends) return;
  throw Error(ErrorKind::peer_lost, "a loader named samples that the data set of " + std::to_string(size) + " has not",
              "all ranks must run the same version of penstock");
}

void IndexRanges::add(int64_t index) {
  if (!bounds_.empty() && bounds_.back() == index) {
    ++bounds_.back();
  } else {
    bounds_.insert(bounds_.end(), {index, index + 1});
  }
}

bool IndexRanges::contains(int64_t index) const noexcept {
  const auto above = std::upper_bound(bounds_.begin(), bounds_.end(), index);
  return (above - bounds_.begin()) % 2 == 1;
}

int64_t IndexRanges::samples() const noexcept {
  int64_t sum = 0;
  for (size_t i = 0; i + 1 < bounds_.size(); i += 2) sum += bounds_[i + 1] - bounds_[i];
  return sum;
}

}  // namespace penstock
