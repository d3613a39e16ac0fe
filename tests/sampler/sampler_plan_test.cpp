#include "sampler/plan.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "sampler/samplers.h"
#include "tests/support/error_of.h"

using namespace penstock;
using Indices = std::vector<int64_t>;

namespace {

Indices indices(const BatchPlan& batch) {
  Indices list;
  for (const PlannedSample& sample : batch) list.push_back(sample.index);
  return list;
}

std::vector<PlannedSample> whole_step(const Plan& plan, int64_t step) {  // all replicas, by position
  std::vector<PlannedSample> samples;
  for (int64_t replica = 0; replica < plan.spec().num_replicas; ++replica) {
    const BatchPlan batch = plan.batch(step, replica);
    samples.insert(samples.end(), batch.begin(), batch.end());
  }
  std::sort(samples.begin(), samples.end(), [](const auto& a, const auto& b) { return a.position < b.position; });
  return samples;
}

std::vector<PlannedSample> whole_epoch(const Plan& plan) {
  std::vector<PlannedSample> samples;
  for (int64_t step = 0; step < plan.steps(); ++step) {
    const std::vector<PlannedSample> more = whole_step(plan, step);
    samples.insert(samples.end(), more.begin(), more.end());
  }
  return samples;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// A random spec, often with fewer samples than replicas; may be one that a Plan refuses.
PlanSpec random_spec(std::mt19937_64& random) {
  const auto below = [&random](int64_t end) { return static_cast<int64_t>(random() % static_cast<uint64_t>(end)); };
  PlanSpec spec;
  spec.num_replicas = 1 + below(9);
  spec.batch_size = 1 + below(7);
  spec.dataset_size = 1 + below(below(2) == 0 ? 12 : 200);
  spec.shuffle = below(2) == 0;
  spec.seed = random();
  spec.tail = static_cast<Tail>(below(3));
  spec.sampler_drop_last = spec.tail == Tail::torch && below(2) == 0;
  spec.batch_drop_last = spec.tail == Tail::torch && below(2) == 0;
  spec.mode = spec.tail != Tail::drop && !spec.sampler_drop_last && !spec.batch_drop_last && below(2) == 0
                  ? Mode::eval
                  : Mode::train;
  return spec;
}

std::string describe(const PlanSpec& spec) {
  return std::to_string(spec.dataset_size) + " samples, " + std::to_string(spec.num_replicas) + " replicas, batch " +
         std::to_string(spec.batch_size) + ", tail " + name_of(spec.tail) + ", mode " + name_of(spec.mode) +
         (spec.sampler_drop_last ? ", sampler.drop_last" : "") + (spec.batch_drop_last ? ", drop_last" : "");
}

constexpr uint64_t kPropertySeed = 20240607;

}  // namespace

TEST_CASE("11 samples on 2 replicas, batches of 4: what each tail gives") {
  PlanSpec spec{.dataset_size = 11, .num_replicas = 2, .batch_size = 4};

  SUBCASE("torch: 12, the first repeated, the last batch shorter") {
    const Plan plan(spec, 0);
    CHECK(plan.shape() == PlanShape{.steps = 2, .samples_per_replica = 6, .samples = 12, .padding = 1, .dropped = 0});
    CHECK(indices(plan.batch(0, 0)) == Indices{0, 2, 4, 6});
    CHECK(indices(plan.batch(0, 1)) == Indices{1, 3, 5, 7});
    CHECK(indices(plan.batch(1, 0)) == Indices{8, 10});
    CHECK(indices(plan.batch(1, 1)) == Indices{9, 0});
    CHECK(plan.batch(1, 1)[1] == PlannedSample{.position = 11, .index = 0, .occurrence = 1, .valid = true});
  }
  SUBCASE("torch, sampler.drop_last: 10") {
    spec.sampler_drop_last = true;
    const Plan plan(spec, 0);
    CHECK(plan.shape() == PlanShape{.steps = 2, .samples_per_replica = 5, .samples = 10, .padding = 0, .dropped = 1});
    CHECK(indices(plan.batch(1, 0)) == Indices{8});
    CHECK(indices(plan.batch(1, 1)) == Indices{9});
  }
  SUBCASE("torch, drop_last: one full batch each") {
    spec.batch_drop_last = true;
    const Plan plan(spec, 0);
    CHECK(plan.shape() == PlanShape{.steps = 1, .samples_per_replica = 4, .samples = 8, .padding = 0, .dropped = 3});
  }
  SUBCASE("torch, both flags: the same as tail drop here") {
    spec.sampler_drop_last = spec.batch_drop_last = true;
    PlanSpec drop = spec;
    drop.tail = Tail::drop;
    CHECK(whole_epoch(Plan(spec, 0)) == whole_epoch(Plan(drop, 0)));
    CHECK(Plan(drop, 0).shape().samples == 8);
  }
  SUBCASE("pad: 16, every batch full") {
    spec.tail = Tail::pad;
    const Plan plan(spec, 0);
    CHECK(plan.shape() == PlanShape{.steps = 2, .samples_per_replica = 8, .samples = 16, .padding = 5, .dropped = 0});
    CHECK(indices(plan.batch(1, 0)) == Indices{8, 10, 1, 3});
    CHECK(indices(plan.batch(1, 1)) == Indices{9, 0, 2, 4});
  }
}

TEST_CASE("1 sample on 3 replicas: everybody gets it, with its own occurrence") {
  const Plan plan({.dataset_size = 1, .num_replicas = 3, .batch_size = 2, .shuffle = true, .tail = Tail::pad}, 0);
  REQUIRE(plan.steps() == 1);
  for (int64_t replica = 0; replica < 3; ++replica) {
    for (int64_t row_index = 0; row_index < 2; ++row_index) {
      const int64_t position = row_index * 3 + replica;
      CHECK(plan.batch(0, replica)[static_cast<size_t>(row_index)] ==
            PlannedSample{.position = position, .index = 0, .occurrence = static_cast<uint16_t>(position)});
    }
  }
}

TEST_CASE("eval: padding is there so that replicas stay in step, and is not valid") {
  const PlanSpec spec{.dataset_size = 11, .num_replicas = 2, .batch_size = 4, .tail = Tail::pad, .mode = Mode::eval};
  int64_t valid = 0;
  for (const PlannedSample& sample : whole_epoch(Plan(spec, 0))) {
    CHECK(sample.valid == (sample.position < 11));
    valid += sample.valid ? 1 : 0;
  }
  CHECK(valid == 11);
  CHECK(valid_samples(spec, 0) == 6);
  CHECK(valid_samples(spec, 1) == 5);
}

TEST_CASE("eval with anything that drops is refused, naming the keys") {
  const PlanSpec eval{.dataset_size = 12, .num_replicas = 2, .batch_size = 3, .mode = Mode::eval};
  PlanSpec spec = eval;
  spec.tail = Tail::drop;
  Error error = error_of([&] { Plan(spec, 0); });
  CHECK(error.kind() == ErrorKind::config);
  CHECK(has(error.message(), "mode: eval"));
  CHECK(has(error.message(), "tail: drop"));

  spec = eval;
  spec.sampler_drop_last = spec.batch_drop_last = true;
  error = error_of([&] { plan_shape(spec); });
  CHECK(error.kind() == ErrorKind::config);
  CHECK(has(error.message(), "sampler.drop_last: true, drop_last: true"));
  CHECK(has(error.remedy(), "drop_last"));
}

TEST_CASE("what cannot work is refused with a remedy") {
  const PlanSpec good{.dataset_size = 5, .num_replicas = 2, .batch_size = 4};
  const auto refused = [&good](ErrorKind kind, const std::string& part, auto change) {
    PlanSpec spec = good;
    change(spec);
    const Error error = error_of([&] { plan_shape(spec); });
    CAPTURE(error.what());
    CHECK(error.kind() == kind);
    CHECK(has(error.message(), part));
    CHECK(!error.remedy().empty());
  };
  refused(ErrorKind::config, "no batch is left", [](PlanSpec& spec) { spec.tail = Tail::drop; });
  refused(ErrorKind::config, "no batch is left", [](PlanSpec& spec) { spec.batch_drop_last = true; });
  refused(ErrorKind::config, "no batch is left", [](PlanSpec& spec) {
    spec.num_replicas = 6;
    spec.sampler_drop_last = true;
  });
  refused(ErrorKind::config, "tail: pad", [](PlanSpec& spec) {
    spec.tail = Tail::pad;
    spec.batch_drop_last = true;
  });
  refused(ErrorKind::dataset, "empty", [](PlanSpec& spec) { spec.dataset_size = 0; });
  refused(ErrorKind::dataset, "samples", [](PlanSpec& spec) { spec.dataset_size = INT64_MAX; });
  refused(ErrorKind::config, "batch_size", [](PlanSpec& spec) { spec.batch_size = 0; });
  refused(ErrorKind::config, "num_replicas", [](PlanSpec& spec) { spec.num_replicas = INT64_MAX; });
  refused(ErrorKind::config, "more than 65536 times", [](PlanSpec& spec) {
    spec.dataset_size = 1;
    spec.num_replicas = 65537;
  });
  CHECK(plan_shape({.dataset_size = 1, .num_replicas = 65536, .batch_size = 4}).steps == 1);

  const Plan plan(good, 0);
  CHECK(error_of([&] { plan.batch(plan.steps(), 0); }).kind() == ErrorKind::usage);
  CHECK(error_of([&] { plan.batch(-1, 0); }).kind() == ErrorKind::usage);
  CHECK(error_of([&] { plan.batch(0, 2); }).kind() == ErrorKind::usage);
  CHECK(error_of([&] { plan.at(plan.shape().samples); }).kind() == ErrorKind::usage);
  CHECK(error_of([&] { Plan(good, -1); }).kind() == ErrorKind::usage);
}

TEST_CASE("property: positions, occurrences, validity and counts of any epoch") {
  MESSAGE("seed " << kPropertySeed);
  std::mt19937_64 random(kPropertySeed);
  int planned = 0;
  for (int trial = 0; trial < 3000; ++trial) {
    const PlanSpec spec = random_spec(random);
    INFO("trial " << trial << ": " << describe(spec));
    PlanShape shape;
    try {
      shape = plan_shape(spec);
    } catch (const Error& error) {
      REQUIRE(error.kind() == ErrorKind::config);
      REQUIRE(has(error.message(), "no batch is left"));
      continue;
    }
    ++planned;
    const Plan plan(spec, trial % 5);
    std::map<int64_t, int64_t> seen;
    int64_t position = 0;
    int64_t valid = 0;
    bool good = true;
    for (const PlannedSample& sample : whole_epoch(plan)) {
      good = good && sample.position == position++;  // a gapless order, in step with the steps
      good = good && sample.occurrence == seen[sample.index]++;
      good = good && sample.valid == (spec.mode == Mode::train || sample.occurrence == 0);
      good = good && sample.index >= 0 && sample.index < spec.dataset_size;
      valid += sample.valid ? 1 : 0;
    }
    REQUIRE(good);
    REQUIRE(position == shape.samples);
    REQUIRE(shape.samples - shape.padding + shape.dropped == spec.dataset_size);
    REQUIRE(static_cast<int64_t>(seen.size()) == spec.dataset_size - shape.dropped);
    int64_t counted = 0;
    for (int64_t replica = 0; replica < spec.num_replicas; ++replica) counted += valid_samples(spec, replica);
    REQUIRE(counted == valid);
    if (spec.mode == Mode::eval) REQUIRE(valid == spec.dataset_size);
    for (int64_t step = 0; step < plan.steps(); ++step) {  // none empty, only the last may be shorter
      REQUIRE(plan.batch_length(step) >= 1);
      if (step + 1 < plan.steps() || spec.tail != Tail::torch) REQUIRE(plan.batch_length(step) == spec.batch_size);
    }
  }
  CHECK(planned > 2000);
}

TEST_CASE("property: random access equals walking the samplers") {
  MESSAGE("seed " << kPropertySeed + 1);
  std::mt19937_64 random(kPropertySeed + 1);
  int walked = 0;
  for (int trial = 0; trial < 1000; ++trial) {
    PlanSpec spec = random_spec(random);
    spec.tail = Tail::torch;
    INFO("trial " << trial << ": " << describe(spec));
    try {
      plan_shape(spec);
    } catch (const Error&) {
      continue;
    }
    ++walked;
    const int64_t epoch = trial % 7;
    const Plan plan(spec, epoch);
    const int64_t replica = static_cast<int64_t>(random() % static_cast<uint64_t>(spec.num_replicas));
    DistributedSampler sampler(spec.dataset_size, spec.num_replicas, replica, spec.shuffle, spec.seed,
                               spec.sampler_drop_last);
    sampler.set_epoch(epoch);
    std::vector<Indices> batches;
    for (const Indices& batch : BatchSampler(sampler, spec.batch_size, spec.batch_drop_last)) batches.push_back(batch);
    REQUIRE(static_cast<int64_t>(batches.size()) == plan.steps());
    for (int64_t step = plan.steps() - 1; step >= 0; --step) {  // backwards: no order is needed
      REQUIRE(indices(plan.batch(step, replica)) == batches[static_cast<size_t>(step)]);
    }
  }
  CHECK(walked > 500);
}

TEST_CASE("elastic: with the global batch kept, every full global step has the same samples for 1, 2 and 4 replicas") {
  int64_t compared = 0;
  for (const Tail tail : {Tail::torch, Tail::pad, Tail::drop}) {
    for (const int64_t size : {3, 8, 11, 64, 101}) {
      if (tail == Tail::drop && size < 8) continue;
      const auto spec = [&](int64_t replicas) {
        return PlanSpec{.dataset_size = size,
                        .num_replicas = replicas,
                        .batch_size = 8 / replicas,
                        .shuffle = true,
                        .seed = 3,
                        .tail = tail};
      };
      const Plan one(spec(1), 2);
      for (const int64_t replicas : {2, 4, 8}) {
        CAPTURE(size);
        CAPTURE(replicas);
        CAPTURE(name_of(tail));
        const Plan many(spec(replicas), 2);
        const int64_t full_steps = tail == Tail::torch ? size / 8 : one.steps();
        for (int64_t step = 0; step < full_steps; ++step, ++compared) {
          CHECK(whole_step(many, step) == whole_step(one, step));
        }
        if (tail != Tail::torch) CHECK(many.shape().samples == one.shape().samples);  // the tail as well
      }
    }
  }
  CHECK(compared > 100);
}

TEST_CASE("a given order: its indices, and how often each stood before, also in the padding") {
  const auto order = GivenOrder::make({7, 2, 7, 7, 5}, 8, "order.npy");
  CHECK(order->largest_count() == 3);
  const PlanSpec spec{.dataset_size = 5, .num_replicas = 2, .batch_size = 4, .tail = Tail::pad};
  const Plan plan(spec, 0, order);
  std::vector<std::pair<int64_t, int>> seen;
  std::map<int64_t, int> before;
  for (int64_t position = 0; position < plan.shape().samples; ++position) {
    const PlannedSample sample = plan.at(position);
    seen.emplace_back(sample.index, sample.occurrence);
    CHECK(sample.occurrence == before[sample.index]++);  // the contract's words, counted one by one
  }
  CHECK(seen == std::vector<std::pair<int64_t, int>>{{7, 0}, {2, 0}, {7, 1}, {7, 2}, {5, 0}, {7, 3}, {2, 1}, {7, 4}});
  CHECK(indices(plan.batch(0, 1)) == Indices{2, 7, 7, 7});
}

TEST_CASE("a given order without repetitions is a permutation: occurrences are rounds") {
  const Plan given({.dataset_size = 3, .num_replicas = 4, .batch_size = 2, .tail = Tail::pad}, 5,
                   GivenOrder::make({0, 1, 2}, 3, "order.npy"));
  const Plan identity({.dataset_size = 3, .num_replicas = 4, .batch_size = 2, .tail = Tail::pad}, 5);
  CHECK(whole_epoch(given) == whole_epoch(identity));
}

TEST_CASE("a given order that cannot be is refused by name") {
  for (const int64_t wrong : {int64_t{-1}, int64_t{8}, int64_t{1} << 62}) {
    const Error error = error_of([&] { (void)GivenOrder::make({0, 7, wrong}, 8, "order.npy"); });
    CHECK(error.kind() == ErrorKind::dataset);
    CHECK(error.message() ==
          "order.npy: index " + std::to_string(wrong) + " at position 2 is outside the dataset of 8 samples");
  }
  const auto many = GivenOrder::make(Indices(65536, 1), 2, "order.npy");
  const PlanSpec spec{.dataset_size = 65536, .batch_size = 64};
  CHECK(Plan(spec, 0, many).at(65535).occurrence == 65535);
  const auto too_many = GivenOrder::make(Indices(65537, 1), 2, "order.npy");
  const Error error = error_of([&] { (void)Plan({.dataset_size = 65537, .batch_size = 64}, 0, too_many); });
  CHECK(error.kind() == ErrorKind::config);
  CHECK(has(error.message(), "65537 times"));
  CHECK(error_of([&] { (void)Plan({.dataset_size = 4}, 0, many); }).kind() == ErrorKind::usage);
}
