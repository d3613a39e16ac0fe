#include "sampler/position.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "runtime/base/error.h"

namespace sampler_position_test {

using namespace penstock;

namespace {

const PlanSpec on_two{
    .dataset_size = 101, .num_replicas = 2, .batch_size = 4, .shuffle = true, .seed = 9, .tail = Tail::pad};

PlanSpec with_replicas(PlanSpec spec, int64_t num_replicas) {  // the global batch is kept
  spec.batch_size = spec.global_batch() / num_replicas;
  spec.num_replicas = num_replicas;
  return spec;
}

// Everything from a position to the end of its epoch, in global order.
std::vector<PlannedSample> rest_of_epoch(const Position& from) {
  const Plan plan(from.spec, from.epoch);
  std::vector<PlannedSample> samples;
  for (int64_t step = from.step; step < plan.steps(); ++step) {
    for (int64_t replica = 0; replica < from.spec.num_replicas; ++replica) {
      const BatchPlan batch = plan.batch(step, replica);
      samples.insert(samples.end(), batch.begin(), batch.end());
    }
  }
  std::sort(samples.begin(), samples.end(), [](const auto& a, const auto& b) { return a.position < b.position; });
  return samples;
}

Error refusal(const Position& saved, const PlanSpec& now) {
  try {
    resume(saved, now, "train");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::config);
    CHECK(error.message().find("split 'train'") != std::string::npos);
    CHECK(!error.remedy().empty());
    return error;
  }
  return Error(ErrorKind::runtime, "nothing was refused");
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

}  // namespace

TEST_CASE("saved on 2 replicas in mid-epoch, resumed on 1, 2, 4 and 8: the rest of the epoch is the same") {
  for (const Tail tail : {Tail::pad, Tail::drop}) {
    PlanSpec spec = on_two;
    spec.tail = tail;
    const std::string text = to_text(position_at(spec, 3, 5));
    const Position saved = position_from_text(text);
    CHECK(saved.samples == 40);
    const std::vector<PlannedSample> expected = rest_of_epoch(saved);
    REQUIRE(expected.front().position == 40);
    for (const int64_t replicas : {1, 2, 4, 8}) {
      const Position here = resume(saved, with_replicas(spec, replicas));
      CHECK(here.spec.num_replicas == replicas);
      CHECK(here.epoch == 3);
      CHECK(here.step == 5);
      CHECK(rest_of_epoch(here) == expected);
    }
  }
}

TEST_CASE("tail torch: the same number of replicas resumes anywhere") {
  PlanSpec spec = on_two;
  spec.tail = Tail::torch;
  for (const int64_t step : {0, 5, 13}) CHECK(resume(position_at(spec, 1, step), spec).step == step);
}

TEST_CASE("tail torch: another number of replicas is refused by name where the tails differ") {
  PlanSpec spec = on_two;
  spec.tail = Tail::torch;
  const Position saved = position_at(spec, 0, 5);
  const Error error = refusal(saved, with_replicas(spec, 4));  // 102 samples on 2 replicas, 104 on 4
  CHECK(has(error.message(), "tail: torch"));
  CHECK(has(error.message(), "102 samples an epoch on 2 replicas and 104 on 4"));
  CHECK(has(error.remedy(), "tail: pad"));
}

TEST_CASE("tail torch: another number of replicas is fine where there is no tail to cross") {
  PlanSpec spec = on_two;
  spec.tail = Tail::torch;
  SUBCASE("the global batch divides the dataset") {
    spec.dataset_size = 104;
  }
  SUBCASE("both drop_last flags") {
    spec.sampler_drop_last = spec.batch_drop_last = true;
  }
  const Position saved = position_at(spec, 0, 5);
  for (const int64_t replicas : {1, 4}) {
    CHECK(rest_of_epoch(resume(saved, with_replicas(spec, replicas))) == rest_of_epoch(saved));
  }
}

TEST_CASE("what changes the stream is refused, with both values; all of it in one message") {
  const Position saved = position_at(on_two, 0, 5);
  const auto now = [](auto change) {
    PlanSpec spec = on_two;
    change(spec);
    return spec;
  };
  CHECK(has(refusal(saved, now([](PlanSpec& s) { s.batch_size = 8; })).message(),
            "global batch was 8 (num_replicas 2 x batch_size 4) and is now 16 (num_replicas 2 x batch_size 8)"));
  CHECK(has(refusal(saved, now([](PlanSpec& s) { s.num_replicas = 3; })).message(), "global batch was 8"));
  CHECK(has(refusal(saved, now([](PlanSpec& s) { s.dataset_size = 100; })).message(),
            "dataset size was 101 and is now 100"));
  CHECK(has(refusal(saved, now([](PlanSpec& s) { s.seed = 1; })).message(), "seed was 9 and is now 1"));
  CHECK(has(refusal(saved, now([](PlanSpec& s) { s.tail = Tail::drop; })).message(), "tail was pad and is now drop"));
  CHECK(has(refusal(saved, now([](PlanSpec& s) { s.mode = Mode::eval; })).message(), "mode was train"));
  const std::string both = refusal(saved, now([](PlanSpec& s) {
                                     s.shuffle = false;
                                     s.dataset_size = 7;
                                   }))
                               .message();
  CHECK(has(both, "sampler.shuffle was true and is now false"));
  CHECK(has(both, "dataset size was 101 and is now 7"));

  PlanSpec torch = on_two;
  torch.tail = Tail::torch;
  PlanSpec dropping = torch;
  dropping.batch_drop_last = true;
  CHECK(has(refusal(position_at(torch, 0, 1), dropping).message(), "drop_last was false and is now true"));
}

TEST_CASE("the end of an epoch rolls over to the next") {
  const Position end = position_at(on_two, 2, 13);
  CHECK(epoch_done(end));
  CHECK(end.samples == 104);
  CHECK(roll_over(end) == position_at(on_two, 3, 0));
  const Position before = position_at(on_two, 2, 12);
  CHECK(!epoch_done(before));
  CHECK(roll_over(before) == before);

  PlanSpec torch = on_two;
  torch.tail = Tail::torch;  // the last batch is shorter: 102 samples, not 13 x 8
  CHECK(position_at(torch, 0, 13).samples == 102);
}

TEST_CASE("property: text keeps every position") {
  constexpr uint64_t seed = 77;
  MESSAGE("seed " << seed);
  std::mt19937_64 random(seed);
  int kept = 0;
  for (int trial = 0; trial < 1000; ++trial) {
    PlanSpec spec;
    spec.dataset_size = 1 + static_cast<int64_t>(random() >> 20);
    spec.num_replicas = 1 + static_cast<int64_t>(random() % 4096);
    spec.batch_size = 1 + static_cast<int64_t>(random() % 4096);
    spec.shuffle = random() % 2 == 0;
    spec.seed = random();
    spec.tail = static_cast<Tail>(random() % 3);
    spec.batch_drop_last = spec.tail == Tail::torch && random() % 2 == 0;
    spec.mode = spec.tail == Tail::pad && random() % 2 == 0 ? Mode::eval : Mode::train;
    const int64_t steps = plan_shape(spec).steps;
    const int64_t step = static_cast<int64_t>(random() % static_cast<uint64_t>(steps + 1));
    const Position position = position_at(spec, static_cast<int64_t>(random() % 1000), step);
    REQUIRE(position_from_text(to_text(position)) == position);
    ++kept;
  }
  CHECK(kept == 1000);
}

TEST_CASE("text that was not saved by us is refused, naming what is wrong") {
  const std::string good = to_text(position_at(on_two, 3, 5));
  REQUIRE(position_from_text(good) == position_at(on_two, 3, 5));
  const auto complaint = [](const std::string& text) {
    try {
      position_from_text(text);
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::config);
      return error.message();
    }
    return std::string("nothing was refused");
  };
  CHECK(has(complaint(""), "empty"));
  CHECK(has(complaint("{\"epoch\": 3}"), "line 1"));
  CHECK(has(complaint(replaced(good, "position 1", "position 2")), "line 1"));
  CHECK(has(complaint(replaced(good, "epoch 3\n", "")), "'epoch' is missing"));
  CHECK(has(complaint(good + "epoch 3\n"), "'epoch' a second time"));
  CHECK(has(complaint(good + "workers 3\n"), "line 14"));
  CHECK(has(complaint(good + "\n"), "line 14"));
  CHECK(has(complaint(replaced(good, "epoch 3", "epoch three")), "'epoch' is no number"));
  CHECK(has(complaint(replaced(good, "epoch 3", "epoch 3 ")), "'epoch' is no number"));
  CHECK(has(complaint(replaced(good, "epoch 3", "epoch -3")), "epoch -3"));
  CHECK(has(complaint(replaced(good, "seed 9", "seed 99999999999999999999999")), "'seed' is no number"));
  CHECK(has(complaint(replaced(good, "tail pad", "tail cut")), "'tail'"));
  CHECK(has(complaint(replaced(good, "mode train", "mode test")), "'mode'"));
  CHECK(has(complaint(replaced(good, "shuffle true", "shuffle 1")), "'shuffle'"));
  CHECK(has(complaint(replaced(good, "samples 40", "samples 41")), "'samples' is 41"));
  CHECK(has(complaint(replaced(good, "step 5", "step 14")), "step 14"));
  CHECK(has(complaint(replaced(good, "num_replicas 2", "num_replicas 9223372036854775807")), "num_replicas"));
  CHECK(has(complaint(good + std::string(5000, 'x')), "longer than 4096"));
}

TEST_CASE("any prefix of a saved text is refused, and no flipped byte crashes") {
  const std::string good = to_text(position_at(on_two, 3, 5));
  for (size_t length = 0; length + 1 < good.size(); ++length) {  // without the last newline it is still whole
    CHECK_THROWS_AS(position_from_text(good.substr(0, length)), Error);
  }
  for (size_t at = 0; at < good.size(); ++at) {
    for (const int bit : {0, 3, 7}) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ (1 << bit));
      try {
        position_from_text(bad);  // a digit may turn into another digit; anything else is an Error
      } catch (const Error&) {
      }
    }
  }
}

}  // namespace sampler_position_test
