#include "sampler/given_order.h"

#include <algorithm>

#include "runtime/base/error.h"

namespace penstock {

void check_indices(const std::vector<int64_t>& indices, int64_t dataset_size, const std::string& source) {
  for (size_t place = 0; place < indices.size(); ++place) {
    if (indices[place] >= 0 && indices[place] < dataset_size) continue;
    throw Error(ErrorKind::dataset,
                source + ": index " + std::to_string(indices[place]) + " at position " + std::to_string(place) +
                    " is outside the dataset of " + std::to_string(dataset_size) + " samples",
                "indices go from 0 to " + std::to_string(dataset_size - 1));
  }
}

std::shared_ptr<const GivenOrder> GivenOrder::make(std::vector<int64_t> indices, int64_t dataset_size,
                                                   const std::string& source) {
  check_indices(indices, dataset_size, source);
  auto order = std::make_shared<GivenOrder>();
  order->indices_ = std::move(indices);
  order->times_.assign(static_cast<size_t>(dataset_size), 0);
  order->before_.reserve(order->indices_.size());
  uint32_t most = 0;
  for (const int64_t index : order->indices_) {
    uint32_t& times = order->times_[static_cast<size_t>(index)];
    order->before_.push_back(times++);
    most = std::max(most, times);
  }
  order->largest_count_ = most;
  if (most <= 1) {
    order->before_ = {};
    order->times_ = {};
  }
  return order;
}

}  // namespace penstock
