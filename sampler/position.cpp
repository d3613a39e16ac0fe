#include "sampler/position.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>

#include "runtime/base/error.h"

namespace penstock {
namespace {

using std::to_string;

constexpr std::string_view kHeaderLine = "penstock position 1";

const char* boolean_text(bool value) {
  return value ? "true" : "false";
}

int64_t samples_before(const PlanSpec& spec, const PlanShape& shape, int64_t step) {
  return step == shape.steps ? shape.samples : step * spec.global_batch();
}

[[noreturn]] void refuse_text(const std::string& why) {
  throw Error(ErrorKind::config, "saved position: " + why,
              "use the text that was saved, unchanged, by this version of penstock");
}

template <class Number>
Number parse_number(std::string_view key, std::string_view value) {
  Number number{};
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc{} || end != value.data() + value.size()) {
    refuse_text("'" + std::string(key) + "' is no number in range: '" + std::string(value) + "'");
  }
  return number;
}

bool parse_bool(std::string_view key, std::string_view value) {
  if (value != "true" && value != "false") {
    refuse_text("'" + std::string(key) + "' is neither true nor false: '" + std::string(value) + "'");
  }
  return value == "true";
}

Tail parse_tail(std::string_view value) {
  for (const Tail tail : {Tail::torch, Tail::pad, Tail::drop}) {
    if (value == name_of(tail)) return tail;
  }
  refuse_text("'tail' is none of torch, pad, drop: '" + std::string(value) + "'");
}

Mode parse_mode(std::string_view value) {
  for (const Mode mode : {Mode::train, Mode::eval}) {
    if (value == name_of(mode)) return mode;
  }
  refuse_text("'mode' is none of train, eval: '" + std::string(value) + "'");
}

constexpr std::array<std::string_view, 12> kKeys = {
    "epoch", "step", "samples", "dataset_size", "num_replicas",      "batch_size",
    "mode",  "tail", "shuffle", "seed",         "sampler_drop_last", "batch_drop_last"};

void set_key(Position& position, std::string_view key, std::string_view value) {
  PlanSpec& spec = position.spec;
  if (key == "epoch") position.epoch = parse_number<int64_t>(key, value);
  if (key == "step") position.step = parse_number<int64_t>(key, value);
  if (key == "samples") position.samples = parse_number<int64_t>(key, value);
  if (key == "dataset_size") spec.dataset_size = parse_number<int64_t>(key, value);
  if (key == "num_replicas") spec.num_replicas = parse_number<int64_t>(key, value);
  if (key == "batch_size") spec.batch_size = parse_number<int64_t>(key, value);
  if (key == "mode") spec.mode = parse_mode(value);
  if (key == "tail") spec.tail = parse_tail(value);
  if (key == "shuffle") spec.shuffle = parse_bool(key, value);
  if (key == "seed") spec.seed = parse_number<uint64_t>(key, value);
  if (key == "sampler_drop_last") spec.sampler_drop_last = parse_bool(key, value);
  if (key == "batch_drop_last") spec.batch_drop_last = parse_bool(key, value);
}

// Collects "key: a when saved, b now" for every difference, so that one message says all of them.
class Differences {
 public:
  template <class Value>
  void compare(const char* key, const Value& saved, const Value& now) {
    if (saved == now) return;
    list_ += (list_.empty() ? "" : "; ") + std::string(key) + " was " + std::string(saved) + " and is now " +
             std::string(now);
  }
  const std::string& list() const noexcept { return list_; }

 private:
  std::string list_;
};

std::string global_batch_text(const PlanSpec& spec) {
  return to_string(spec.global_batch()) + " (num_replicas " + to_string(spec.num_replicas) + " x batch_size " +
         to_string(spec.batch_size) + ")";
}

}  // namespace

Position position_at(const PlanSpec& spec, int64_t epoch, int64_t step) {
  const PlanShape shape = plan_shape(spec);
  if (epoch < 0 || epoch > std::numeric_limits<uint32_t>::max()) {
    throw Error(ErrorKind::usage, "position at epoch " + to_string(epoch), "epochs go from 0 to 2^32 - 1");
  }
  if (step < 0 || step > shape.steps) {
    throw Error(ErrorKind::usage,
                "position at step " + to_string(step) + " of an epoch of " + to_string(shape.steps) + " steps");
  }
  return {.spec = spec, .epoch = epoch, .step = step, .samples = samples_before(spec, shape, step)};
}

bool epoch_done(const Position& position) {
  return position.step >= plan_shape(position.spec).steps;
}

Position roll_over(const Position& position) {
  return epoch_done(position) ? position_at(position.spec, position.epoch + 1, 0) : position;
}

std::string to_text(const Position& position) {
  const PlanSpec& spec = position.spec;
  std::string out(kHeaderLine);
  const auto add = [&out](const char* key, const std::string& value) { out += "\n" + std::string(key) + " " + value; };
  add("epoch", to_string(position.epoch));
  add("step", to_string(position.step));
  add("samples", to_string(position.samples));
  add("dataset_size", to_string(spec.dataset_size));
  add("num_replicas", to_string(spec.num_replicas));
  add("batch_size", to_string(spec.batch_size));
  add("mode", name_of(spec.mode));
  add("tail", name_of(spec.tail));
  add("shuffle", boolean_text(spec.shuffle));
  add("seed", to_string(spec.seed));
  add("sampler_drop_last", boolean_text(spec.sampler_drop_last));
  add("batch_drop_last", boolean_text(spec.batch_drop_last));
  return out + "\n";
}

Position position_from_text(std::string_view all) {
  if (all.size() > kMaxPositionText) refuse_text("longer than " + to_string(kMaxPositionText) + " bytes");
  Position position;
  std::array<bool, kKeys.size()> seen{};
  bool header_seen = false;
  for (int64_t line_number = 1; !all.empty(); ++line_number) {
    const std::string_view line = all.substr(0, all.find('\n'));
    all.remove_prefix(std::min(all.size(), line.size() + 1));
    if (!header_seen) {
      if (line != kHeaderLine) {
        refuse_text("line 1 is '" + std::string(line.substr(0, 64)) + "', not '" + std::string(kHeaderLine) + "'");
      }
      header_seen = true;
      continue;
    }
    const size_t space = line.find(' ');
    const std::string_view key = line.substr(0, space);
    const auto found = std::find(kKeys.begin(), kKeys.end(), key);
    if (space == std::string_view::npos || found == kKeys.end()) {
      refuse_text("line " + to_string(line_number) + " has no key that is known: '" + std::string(line.substr(0, 64)) +
                  "'");
    }
    bool& known = seen[static_cast<size_t>(found - kKeys.begin())];
    if (known) refuse_text("line " + to_string(line_number) + " gives '" + std::string(key) + "' a second time");
    known = true;
    set_key(position, key, line.substr(space + 1));
  }
  if (!header_seen) refuse_text("it is empty");
  for (size_t i = 0; i < kKeys.size(); ++i) {
    if (!seen[i]) refuse_text("the key '" + std::string(kKeys[i]) + "' is missing");
  }
  Position expected;
  try {
    expected = position_at(position.spec, position.epoch, position.step);
  } catch (const Error& error) {
    refuse_text(error.message());
  }
  if (expected.samples != position.samples) {
    refuse_text("'samples' is " + to_string(position.samples) + ", but step " + to_string(position.step) +
                " stands at " + to_string(expected.samples));
  }
  return position;
}

Position resume(const Position& saved, const PlanSpec& now, std::string_view split) {
  const std::string who = split.empty() ? "cannot resume" : "cannot resume split '" + std::string(split) + "'";
  const PlanSpec& then = saved.spec;
  const PlanShape shape_then = plan_shape(then);
  const PlanShape shape_now = plan_shape(now);

  Differences differences;
  differences.compare("dataset size", to_string(then.dataset_size), to_string(now.dataset_size));
  differences.compare<std::string>("mode", name_of(then.mode), name_of(now.mode));
  differences.compare<std::string>("sampler.shuffle", boolean_text(then.shuffle), boolean_text(now.shuffle));
  // Without shuffling the seed has no part in the order, but it still draws the augmentations.
  differences.compare("seed", to_string(then.seed), to_string(now.seed));
  differences.compare<std::string>("tail", name_of(then.tail), name_of(now.tail));
  if (then.tail == Tail::torch && now.tail == Tail::torch) {
    differences.compare<std::string>("sampler.drop_last", boolean_text(then.sampler_drop_last),
                                     boolean_text(now.sampler_drop_last));
    differences.compare<std::string>("drop_last", boolean_text(then.batch_drop_last),
                                     boolean_text(now.batch_drop_last));
  }
  if (then.global_batch() != now.global_batch()) {
    differences.compare("global batch", global_batch_text(then), global_batch_text(now));
  }
  if (!differences.list().empty()) {
    throw Error(ErrorKind::config, who + ": " + differences.list(),
                "resume with the same settings; num_replicas may change where num_replicas x batch_size does not");
  }
  // With equal settings and global batch, equal totals mean equal steps and equal positions in each of them.
  if (shape_then.samples != shape_now.samples) {
    throw Error(ErrorKind::config,
                who + " with num_replicas " + to_string(now.num_replicas) + ", saved with " +
                    to_string(then.num_replicas) + ": it would cross a tail: torch, which gives " +
                    to_string(shape_then.samples) + " samples an epoch on " + to_string(then.num_replicas) +
                    " replicas and " + to_string(shape_now.samples) + " on " + to_string(now.num_replicas),
                "resume with num_replicas " + to_string(then.num_replicas) +
                    ", or train with tail: pad or tail: drop, whose epochs are the same for any number of replicas");
  }
  return position_at(now, saved.epoch, saved.step);
}

}  // namespace penstock
