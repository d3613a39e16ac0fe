#include "sampler/samplers.h"

#include <limits>
#include <string>

#include "runtime/base/error.h"

namespace penstock {
namespace {

void check(bool good, const char* name, int64_t value, const std::string& range) {
  if (!good) {
    throw Error(ErrorKind::usage, "sampler: " + std::string(name) + " is " + std::to_string(value),
                std::string(name) + " has to be " + range);
  }
}

int64_t checked_size(int64_t dataset_size) {
  check(dataset_size >= 0, "dataset_size", dataset_size, "0 or more");
  return dataset_size;
}

int64_t checked_epoch(int64_t epoch) {
  check(epoch >= 0 && epoch <= std::numeric_limits<uint32_t>::max(), "epoch", epoch, "from 0 to 2^32 - 1");
  return epoch;
}

}  // namespace

void check_batch_size(int64_t batch_size) {
  check(batch_size > 0, "batch_size", batch_size, "positive");
}

SequentialSampler::SequentialSampler(int64_t dataset_size) : dataset_size_(checked_size(dataset_size)) {}

IndexIterator SequentialSampler::begin() const {
  return {Permutation::identity(dataset_size_), 0, 1, dataset_size_};
}

RandomSampler::RandomSampler(int64_t dataset_size, uint64_t seed)
    : dataset_size_(checked_size(dataset_size)), seed_(seed) {}

void RandomSampler::set_epoch(int64_t epoch) {
  epoch_ = checked_epoch(epoch);
}

IndexIterator RandomSampler::begin() const {
  return {Permutation::shuffled(dataset_size_, seed_ + static_cast<uint64_t>(epoch_)), 0, 1, dataset_size_};
}

DistributedSampler::DistributedSampler(int64_t dataset_size, int64_t num_replicas, int64_t rank, bool shuffle,
                                       uint64_t seed, bool drop_last)
    : dataset_size_(checked_size(dataset_size)),
      num_replicas_(num_replicas),
      rank_(rank),
      shuffle_(shuffle),
      seed_(seed) {
  check(num_replicas > 0, "num_replicas", num_replicas, "positive");
  check(rank >= 0 && rank < num_replicas, "rank", rank, "from 0 to " + std::to_string(num_replicas - 1));
  num_samples_ = dataset_size / num_replicas + (!drop_last && dataset_size % num_replicas != 0 ? 1 : 0);
}

void DistributedSampler::set_epoch(int64_t epoch) {
  epoch_ = checked_epoch(epoch);
}

IndexIterator DistributedSampler::begin() const {
  if (num_samples_ == 0) return {};
  Permutation order = shuffle_ ? Permutation::shuffled(dataset_size_, seed_ + static_cast<uint64_t>(epoch_))
                               : Permutation::identity(dataset_size_);
  return {std::move(order), rank_, num_replicas_, num_samples_};
}

}  // namespace penstock
