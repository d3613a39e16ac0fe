#include "sampler/plan.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "runtime/base/error.h"

namespace penstock {
namespace {

using std::to_string;

constexpr int64_t kMaxDatasetSize = int64_t{1} << 48;  // a draw's counter has 48 bits for the index
constexpr int64_t kMaxSide = int64_t{1} << 31;         // of replicas and of a batch: keeps every product below 2^63
constexpr int64_t kMaxOccurrence = std::numeric_limits<uint16_t>::max();

void check_range(const char* key, int64_t value) {
  if (value < 1 || value > kMaxSide) {
    throw Error(ErrorKind::config, std::string(key) + " is " + to_string(value),
                std::string(key) + " has to be from 1 to " + to_string(kMaxSide));
  }
}

// The flags and tails that are set to drop something, as the job file names them.
std::string dropping_keys(const PlanSpec& spec) {
  std::string keys;
  const auto add = [&keys](const char* key) { keys += (keys.empty() ? "" : ", ") + std::string(key); };
  if (spec.tail == Tail::drop) add("tail: drop");
  if (spec.sampler_drop_last) add("sampler.drop_last: true");
  if (spec.batch_drop_last) add("drop_last: true");
  return keys;
}

void check_spec(const PlanSpec& spec) {
  check_range("num_replicas", spec.num_replicas);
  check_range("batch_size", spec.batch_size);
  const std::string keys = dropping_keys(spec);
  // Refused whether or not this dataset's size leaves a remainder: evaluation must not become wrong by adding a file.
  if (spec.mode == Mode::eval && !keys.empty()) {
    throw Error(ErrorKind::config, "mode: eval counts every sample exactly once, but " + keys + " drops samples",
                "remove " + keys + " (padding is marked valid = false in eval), or set mode: train");
  }
  if (spec.tail == Tail::pad && !keys.empty()) {
    throw Error(ErrorKind::config, "tail: pad fills the last batch, but " + keys + " asks to drop it",
                "remove " + keys + ", or set tail: drop or tail: torch");
  }
  if (spec.dataset_size <= 0) {
    throw Error(ErrorKind::dataset, "the dataset is empty (" + to_string(spec.dataset_size) + " samples)",
                "check the dataset's folder and what it should hold");
  }
  if (spec.dataset_size > kMaxDatasetSize) {
    throw Error(ErrorKind::dataset, "the dataset has " + to_string(spec.dataset_size) + " samples",
                "at most 2^48 are supported");
  }
}

constexpr int64_t round_up(int64_t value, int64_t unit) {
  return (value / unit + (value % unit != 0 ? 1 : 0)) * unit;
}
constexpr int64_t round_down(int64_t value, int64_t unit) {
  return value / unit * unit;
}

int64_t delivered_per_replica(const PlanSpec& spec) {
  const int64_t size = spec.dataset_size;
  switch (spec.tail) {
    case Tail::pad: return round_up(size, spec.global_batch()) / spec.num_replicas;
    case Tail::drop: return round_down(size, spec.global_batch()) / spec.num_replicas;
    case Tail::torch: break;
  }
  const int64_t share =
      (spec.sampler_drop_last ? round_down(size, spec.num_replicas) : round_up(size, spec.num_replicas)) /
      spec.num_replicas;
  return spec.batch_drop_last ? round_down(share, spec.batch_size) : share;
}

PlanSpec as_given(PlanSpec spec) {
  spec.shuffle = false;
  return spec;
}

}  // namespace

PlanShape plan_shape(const PlanSpec& spec) {
  check_spec(spec);
  PlanShape shape;
  shape.samples_per_replica = delivered_per_replica(spec);
  if (shape.samples_per_replica == 0) {
    throw Error(ErrorKind::config,
                "no batch is left: " + to_string(spec.dataset_size) +
                    " samples on num_replicas = " + to_string(spec.num_replicas) +
                    " with batch_size = " + to_string(spec.batch_size) + " and " + dropping_keys(spec),
                "set tail: pad, or take a smaller batch_size or fewer replicas");
  }
  shape.steps = round_up(shape.samples_per_replica, spec.batch_size) / spec.batch_size;
  shape.samples = shape.samples_per_replica * spec.num_replicas;
  shape.padding = std::max<int64_t>(0, shape.samples - spec.dataset_size);
  shape.dropped = std::max<int64_t>(0, spec.dataset_size - shape.samples);
  if ((shape.samples - 1) / spec.dataset_size > kMaxOccurrence) {
    throw Error(ErrorKind::config,
                "padding would repeat the " + to_string(spec.dataset_size) + " samples of the dataset more than " +
                    to_string(kMaxOccurrence + 1) + " times to fill num_replicas x batch_size = " +
                    to_string(spec.num_replicas) + " x " + to_string(spec.batch_size),
                "take a smaller batch_size or fewer replicas");
  }
  return shape;
}

int64_t valid_samples(const PlanSpec& spec, int64_t replica) {
  const PlanShape shape = plan_shape(spec);
  if (replica < 0 || replica >= spec.num_replicas) {
    throw Error(ErrorKind::usage,
                "replica " + to_string(replica) + " of " + to_string(spec.num_replicas) + " was asked for");
  }
  if (spec.mode == Mode::train) return shape.samples_per_replica;
  if (replica >= spec.dataset_size) return 0;
  // Positions replica, replica + R, ... below the dataset's size; in eval nothing is dropped.
  return (spec.dataset_size - replica - 1) / spec.num_replicas + 1;
}

Plan::Plan(const PlanSpec& spec, int64_t epoch) : spec_(spec), shape_(plan_shape(spec)), epoch_(epoch) {
  if (epoch < 0 || epoch > std::numeric_limits<uint32_t>::max()) {
    throw Error(ErrorKind::usage, "epoch " + to_string(epoch) + " was asked for", "epochs go from 0 to 2^32 - 1");
  }
  order_ = spec.shuffle ? Permutation::shuffled(spec.dataset_size, spec.seed + static_cast<uint64_t>(epoch))
                        : Permutation::identity(spec.dataset_size);
}

Plan::Plan(const PlanSpec& spec, int64_t epoch, std::shared_ptr<const GivenOrder> order) : Plan(as_given(spec), epoch) {
  spec_ = spec;
  if (order->size() != spec.dataset_size) {
    throw Error(ErrorKind::usage, "an order of " + to_string(order->size()) + " samples was given for a plan of " +
                                      to_string(spec.dataset_size));
  }
  const int64_t rounds = (shape_.samples - 1) / spec.dataset_size + 1;
  if (order->largest_count() > (kMaxOccurrence + 1) / rounds) {
    throw Error(ErrorKind::config,
                "a sample stands " + to_string(order->largest_count() * rounds) +
                    " times in an epoch's order; at most " + to_string(kMaxOccurrence + 1) + " are supported",
                "draw fewer samples an epoch, or give the sample a smaller weight");
  }
  given_ = std::move(order);
}

int64_t Plan::batch_length(int64_t step) const {
  if (step < 0 || step >= shape_.steps) {
    throw Error(ErrorKind::usage,
                "step " + to_string(step) + " was asked for in an epoch of " + to_string(shape_.steps) + " steps");
  }
  return std::min(spec_.batch_size, shape_.samples_per_replica - step * spec_.batch_size);
}

BatchPlan Plan::batch(int64_t step, int64_t replica) const {
  const int64_t length = batch_length(step);
  if (replica < 0 || replica >= spec_.num_replicas) {
    throw Error(ErrorKind::usage,
                "replica " + to_string(replica) + " of " + to_string(spec_.num_replicas) + " was asked for");
  }
  BatchPlan batch;
  batch.reserve(static_cast<size_t>(length));
  for (int64_t row_index = 0; row_index < length; ++row_index) {
    batch.push_back(at((step * spec_.batch_size + row_index) * spec_.num_replicas + replica));
  }
  return batch;
}

PlannedSample Plan::at(int64_t position) const {
  if (position < 0 || position >= shape_.samples) {
    throw Error(ErrorKind::usage, "position " + to_string(position) + " was asked for in an epoch of " +
                                      to_string(shape_.samples) + " samples");
  }
  // Padding repeats the head of the order, as often as it takes, so every index stands exactly once in each run of
  // dataset_size positions: the number of whole runs before is the occurrence.
  const int64_t round = position / spec_.dataset_size;
  const int64_t place = order_[position % spec_.dataset_size];
  return {.position = position,
          .index = given_ ? (*given_)[place] : place,
          .occurrence = static_cast<uint16_t>(given_ ? given_->occurrence(place, round) : round),
          .valid = spec_.mode == Mode::train || round == 0};
}

}  // namespace penstock
