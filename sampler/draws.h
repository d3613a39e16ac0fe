// Orders that torch draws with repetitions: RandomSampler's `replacement` and `num_samples`, WeightedRandomSampler.
//
//   std::vector<int64_t> order = draw_weighted(weights, 100000, seed + epoch);
//
// Contract: index for index what torch gives on the CPU under manual_seed(seed), for every torch so far:
//   draw_permutations      RandomSampler(replacement=False, num_samples): whole permutations, then part of one, from
//                          one generator
//   draw_with_replacement  RandomSampler(replacement=True, num_samples): torch.randint, below 2^28 samples (from there
//                          on torch releases differ)
//   draw_weighted          torch.multinomial(weights as float64, num_samples, replacement=True), for num_samples other
//                          than 1: for a single draw torch takes the way of draws without replacement, whose numbers
//                          depend on how torch was built (its exponential draws come from MKL or from the C library)
// Failure: Error(usage) for negative counts, an empty set to draw from, and weights that are no distribution, naming
//   place and value.
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace penstock {

std::vector<int64_t> draw_permutations(int64_t dataset_size, int64_t num_samples, uint64_t seed);
std::vector<int64_t> draw_with_replacement(int64_t dataset_size, int64_t num_samples, uint64_t seed);
std::vector<int64_t> draw_weighted(std::span<const double> weights, int64_t num_samples, uint64_t seed);
// torch's SubsetRandomSampler: the indices in the order that torch.randperm gives.
std::vector<int64_t> shuffled_subset(std::span<const int64_t> indices, uint64_t seed);

// Error(usage) unless every weight is finite and 0 or more, and their sum is finite and positive.
void check_weights(std::span<const double> weights);

}  // namespace penstock
