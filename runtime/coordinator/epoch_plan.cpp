#include "runtime/coordinator/epoch_plan.h"

#include <algorithm>
#include <string>
#include <utility>

#include "runtime/base/error.h"
#include "sampler/draws.h"

namespace penstock {

void check_numbers(const ResolvedSplit& split, const SamplerNumbers& numbers, int64_t dataset_size) {
  const std::string& file = split.split.sampler.file();
  // All of them are looked at only where one is wrong, to name its place.
  if (!numbers.indices.empty() && (numbers.smallest < 0 || numbers.largest >= dataset_size)) {
    check_indices(numbers.indices, dataset_size, "sampler file '" + file + "'");
  }
  if (numbers.weights.empty()) return;
  if (std::ssize(numbers.weights) != dataset_size) {
    throw Error(ErrorKind::dataset,
                "sampler file '" + file + "' holds " + std::to_string(numbers.weights.size()) +
                    " weights, and the dataset has " + std::to_string(dataset_size) + " samples",
                "write one weight for every sample, in the dataset's order");
  }
}

void check_weights_of(const ResolvedSplit& split, const SamplerNumbers& numbers) {
  if (numbers.weights.empty()) return;
  try {
    check_weights(numbers.weights);
  } catch (const Error& error) {
    throw Error(ErrorKind::dataset, "sampler file '" + split.split.sampler.file() + "': " + error.message(),
                error.remedy());
  }
}

int64_t bad_sample_budget(const BadSampleSpec& spec, const PlanShape& shape) {
  const auto share = static_cast<int64_t>(spec.max_fraction * static_cast<double>(shape.samples_per_replica));
  return std::max(spec.max_count, share);
}

std::shared_ptr<const Plan> epoch_plan(const ResolvedSplit& split, const SamplerNumbers& numbers, int64_t dataset_size,
                                       int64_t num_replicas, int64_t epoch) {
  const PlanSpec spec = plan_spec(split, dataset_size, num_replicas);
  const SamplerSpec& sampler = split.split.sampler;
  if (sampler.file().empty()) return std::make_shared<const Plan>(spec, epoch);
  // As RandomSampler's: an epoch can be made again alone.
  const uint64_t seed = spec.seed + static_cast<uint64_t>(epoch);
  std::vector<int64_t> order;
  if (!sampler.weights.empty()) {
    order = draw_weighted(numbers.weights, spec.dataset_size, seed);
  } else {
    order = sampler.shuffle ? shuffled_subset(numbers.indices, seed) : numbers.indices;
  }
  return std::make_shared<const Plan>(
      spec, epoch, GivenOrder::make(std::move(order), dataset_size, "sampler file '" + sampler.file() + "'"));
}

PlanSpec program_spec(const ResolvedSplit& split, int64_t samples) {
  PlanSpec spec = plan_spec(split, samples, 1);
  spec.batch_drop_last = split.split.drop_last;
  return spec;
}

std::shared_ptr<const Plan> program_plan(const ResolvedSplit& split, std::vector<int64_t> order, int64_t dataset_size,
                                         int64_t epoch) {
  const PlanSpec spec = program_spec(split, std::ssize(order));
  return std::make_shared<const Plan>(
      spec, epoch, GivenOrder::make(std::move(order), dataset_size, "the sampler of split '" + split.name + "'"));
}

void globalize(BatchPlan& batch, int64_t replica, int64_t num_replicas) {
  for (PlannedSample& sample : batch) sample.position = sample.position * num_replicas + replica;
}

}  // namespace penstock
