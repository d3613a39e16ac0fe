#include "sampler/draws.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "runtime/base/error.h"
#include "sampler/permutation.h"

namespace penstock {
namespace {

void check_counts(int64_t dataset_size, int64_t num_samples) {
  if (num_samples < 0) {
    throw Error(ErrorKind::usage, "sampler: num_samples is " + std::to_string(num_samples), "give 0 or more");
  }
  if (dataset_size <= 0 && num_samples > 0) {
    throw Error(ErrorKind::usage, "sampler: " + std::to_string(num_samples) + " samples were asked of an empty dataset",
                "check what the dataset should hold");
  }
}

// torch's uniform_real_distribution<double> over [0, 1).
double uniform(TorchGenerator& generator) {
  return static_cast<double>(generator.random64() & ((uint64_t{1} << 53) - 1)) * 0x1p-53;
}

}  // namespace

std::vector<int64_t> draw_permutations(int64_t dataset_size, int64_t num_samples, uint64_t seed) {
  check_counts(dataset_size, num_samples);
  std::vector<int64_t> order;
  if (num_samples == 0) return order;
  order.reserve(static_cast<size_t>(num_samples));
  if (num_samples <= dataset_size) {
    const Permutation shuffled = Permutation::shuffled(dataset_size, seed);
    for (int64_t place = 0; place < num_samples; ++place) order.push_back(shuffled[place]);
    return order;
  }
  TorchGenerator generator(seed);
  std::vector<uint64_t> one(static_cast<size_t>(dataset_size));
  while (static_cast<int64_t>(order.size()) < num_samples) {
    if (dataset_size < kRandpermLargeFrom) {
      randperm_forward(std::span(one), generator);
    } else {
      randperm_inside_out(std::span(one), generator);
    }
    const auto take = std::min(one.size(), static_cast<size_t>(num_samples) - order.size());
    order.insert(order.end(), one.begin(), one.begin() + static_cast<std::ptrdiff_t>(take));
  }
  return order;
}

std::vector<int64_t> draw_with_replacement(int64_t dataset_size, int64_t num_samples, uint64_t seed) {
  check_counts(dataset_size, num_samples);
  TorchGenerator generator(seed);
  const auto range = static_cast<uint64_t>(std::max<int64_t>(dataset_size, 1));
  const bool wide = range >= uint64_t{1} << 28;  // as torch 2.6; earlier ones from 2^32 on
  std::vector<int64_t> order(static_cast<size_t>(num_samples));
  for (int64_t& index : order) {
    index = static_cast<int64_t>((wide ? generator.random64() : uint64_t{generator.random()}) % range);
  }
  return order;
}

std::vector<int64_t> shuffled_subset(std::span<const int64_t> indices, uint64_t seed) {
  const Permutation places = Permutation::shuffled(std::ssize(indices), seed);
  std::vector<int64_t> order(indices.size());
  for (size_t i = 0; i < order.size(); ++i) {
    order[i] = indices[static_cast<size_t>(places[static_cast<int64_t>(i)])];
  }
  return order;
}

void check_weights(std::span<const double> weights) {
  double sum = 0;
  for (size_t place = 0; place < weights.size(); ++place) {
    if (!std::isfinite(weights[place]) || weights[place] < 0) {
      throw Error(ErrorKind::usage, "weight " + std::to_string(place) + " is " + std::to_string(weights[place]),
                  "weights are finite and 0 or more");
    }
    sum += weights[place];
  }
  if (!(sum > 0) || !std::isfinite(sum)) {
    throw Error(ErrorKind::usage,
                "the sum of the " + std::to_string(weights.size()) + " weights is " + std::to_string(sum),
                "at least one weight has to be positive, and their sum finite");
  }
}

// What torch's multinomial kernel does, operation for operation: every rounding counts.
std::vector<int64_t> draw_weighted(std::span<const double> weights, int64_t num_samples, uint64_t seed) {
  check_counts(std::ssize(weights), num_samples);
  check_weights(weights);
  std::vector<double> cumulated(weights.size());
  double sum = 0;
  for (size_t i = 0; i < weights.size(); ++i) cumulated[i] = sum += weights[i];
  for (double& mass : cumulated) mass /= sum;
  cumulated.back() = 1;
  TorchGenerator generator(seed);
  std::vector<int64_t> order(static_cast<size_t>(num_samples));
  for (int64_t& index : order) {
    index = std::lower_bound(cumulated.begin(), cumulated.end(), uniform(generator)) - cumulated.begin();
  }
  return order;
}

}  // namespace penstock
