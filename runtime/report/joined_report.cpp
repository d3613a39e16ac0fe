#include "runtime/report/joined_report.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/base/json_text.h"

namespace penstock {
namespace {

using nlohmann::json;

constexpr const char* kRemedy = "give the reports of all runs of the job, each once, and no others";
constexpr const char* kOtherData = "see whether the data set, the split or the number of trainers was another";

struct Range {
  int64_t epoch = 0;
  int64_t first = 0;
  int64_t end = 0;
  size_t report = 0;
  StreamHash hash{};  // Hash and batches are sums over the replicas.
  int64_t batches = 0;
};

// What one report has of a split.
struct Part {
  std::vector<Range> ranges;  // of all its replicas together, in order
  StreamHash hash;
  int64_t batches = 0;
  int64_t epoch_steps = 0;
  std::string arithmetic;
};

std::string steps_text(int64_t epoch, int64_t first, int64_t end) {
  const std::string in_epoch = "of epoch " + std::to_string(epoch);
  if (end - first == 1) return "step " + std::to_string(first) + " " + in_epoch;
  return "steps " + std::to_string(first) + " to " + std::to_string(end - 1) + " " + in_epoch;
}
std::string missing_text(int64_t epoch, int64_t first, int64_t end) {
  return steps_text(epoch, first, end) + (end - first == 1 ? " is" : " are") + " in no report";
}
std::string evaluations_text(const json& split) {
  if (split.at("mode") != "eval") return {};
  const int64_t count = split.at("evaluations");
  const int64_t broken_off = split.at("broken_off");
  return "; " + std::to_string(count) +
         (count == 1 ? " evaluation" : " evaluations, and those of one epoch are equal") +
         (broken_off == 0 ? "" : "; " + std::to_string(broken_off) + " broken off");
}
std::string text_of(const Range& range) {
  return steps_text(range.epoch, range.first, range.end);
}

class Joiner {
 public:
  Joiner(const std::vector<NamedReport>& reports, std::string split) : reports_(reports), split_(std::move(split)) {}

  bool is_evaluation() const {
    std::map<std::string, size_t> modes;  // Each has a report that says so, for the message.
    for (size_t i = 0; i < reports_.size(); ++i) {
      const json& splits = reports_[i].second.at("splits");
      if (const auto mine = splits.find(split_); mine != splits.end()) modes.emplace(mode_in(*mine), i);
    }
    if (modes.size() > 1) {
      const auto& [mode, report] = *modes.begin();
      const auto& [other_mode, other_report] = *modes.rbegin();
      fail(name(report) + " has mode " + mode + ", " + name(other_report) + " " + other_mode);
    }
    return !modes.empty() && modes.begin()->first == "eval";
  }

  json join() {
    evaluation_ = is_evaluation();
    std::vector<Range> all;
    StreamHash sum;
    std::map<size_t, Part> parts;
    int64_t batches = 0;
    for (size_t i = 0; i < reports_.size(); ++i) {
      Part part = part_of(i);
      if (part.ranges.empty()) continue;
      all.insert(all.end(), part.ranges.begin(), part.ranges.end());
      sum += part.hash;
      batches += part.batches;
      parts[i] = std::move(part);
    }
    if (all.empty()) fail("no report has anything of it");
    const auto& [first_report, first_part] = *parts.begin();
    for (const auto& [i, part] : parts) {
      if (part.arithmetic == first_part.arithmetic) continue;
      fail(name(first_report) + " has arithmetic " + first_part.arithmetic + ", " + name(i) + " " + part.arithmetic);
    }
    std::stable_sort(all.begin(), all.end(), before);
    json result = {{"arithmetic", first_part.arithmetic}, {"reports", parts.size()}};
    if (evaluation_) {
      add_evaluations(all, parts, result);
      return result;
    }
    for (size_t i = 1; i < all.size(); ++i) check(all[i - 1], all[i], parts[all[i - 1].report].epoch_steps);
    result.update({{"mode", "train"},
                   {"order_hash", sum.order.hex()},
                   {"pixel_hash", sum.pixel.hex()},
                   {"batches", batches},
                   {"first_epoch", all.front().epoch},
                   {"first_step", all.front().first},
                   {"last_epoch", all.back().epoch},
                   {"end_step", all.back().end}});
    return result;
  }

 private:
  static std::string mode_in(const json& split) {
    return split.is_object() ? split.value("mode", std::string("train")) : "train";
  }

  // An evaluation that a run left unfinished may be gone on with by the next one, so a range that begins in mid-epoch is
  // joined to one that ends there. `all` is in order, so the beginnings come first.
  std::vector<Range> evaluations_of(const std::vector<Range>& all) const {
    std::vector<Range> evaluations;
    for (const Range& range : all) {
      if (range.first == 0) {
        evaluations.push_back(range);
        continue;
      }
      const auto begun = std::find_if(evaluations.begin(), evaluations.end(), [&](const Range& one) {
        return one.epoch == range.epoch && one.end == range.first;
      });
      if (begun == evaluations.end()) {
        fail("an evaluation goes on with " + steps_text(range.epoch, range.first, range.first + 1) + " in " +
             name(range.report) + ", and none ends before it");
      }
      begun->end = range.end;
      begun->hash += range.hash;
      begun->batches += range.batches;
    }
    return evaluations;
  }

  void check_same(const Range& a, const Range& b) const {
    if (a.hash.order == b.hash.order && a.hash.pixel == b.hash.pixel) return;
    fail("the hashes of " + text_of(a) + " differ " +
             (a.report == b.report ? "from one evaluation to another in " + name(a.report)
                                   : "between evaluations in " + name(a.report) + " and " + name(b.report)),
         kOtherData);
  }

  // A program evaluates an epoch again and again, so steps that stand twice are what is wanted. They have to be the same
  // each time, and each of them counts once.
  void add_evaluations(const std::vector<Range>& all, const std::map<size_t, Part>& parts, json& result) const {
    const auto& [first_report, first_part] = *parts.begin();
    for (const auto& [i, part] : parts) {
      if (part.epoch_steps == first_part.epoch_steps) continue;
      fail("an epoch has " + std::to_string(first_part.epoch_steps) + " steps in " + name(first_report) + " and " +
               std::to_string(part.epoch_steps) + " in " + name(i),
           kOtherData);
    }
    // By epoch and by the step where it ends: one evaluation, and how many like it there are.
    std::map<int64_t, std::map<int64_t, std::pair<Range, int64_t>>> by_end;
    int64_t count = 0;
    for (const Range& one : evaluations_of(all)) {
      auto& [range, times] = by_end[one.epoch].try_emplace(one.end, one, 0).first->second;
      check_same(range, one);
      ++times;
      ++count;
    }
    StreamHash sum;
    int64_t batches = 0;
    int64_t to_the_end = 0;
    for (const auto& [epoch, ends] : by_end) {
      const auto& [range, times] = ends.rbegin()->second;
      sum += range.hash;
      batches += range.batches;
      to_the_end += times;
    }
    result.update({{"mode", "eval"},
                   {"order_hash", sum.order.hex()},
                   {"pixel_hash", sum.pixel.hex()},
                   {"batches", batches},
                   {"first_epoch", by_end.begin()->first},
                   {"first_step", 0},
                   {"last_epoch", by_end.rbegin()->first},
                   {"end_step", by_end.rbegin()->second.rbegin()->first},
                   {"evaluations", to_the_end},
                   {"broken_off", count - to_the_end}});
  }

  static bool before(const Range& a, const Range& b) {
    return std::tuple(a.epoch, a.first, a.end, a.report) < std::tuple(b.epoch, b.first, b.end, b.report);
  }
  std::string name(size_t report) const { return "'" + reports_[report].first + "'"; }
  [[noreturn]] void fail(const std::string& what, const char* remedy = kRemedy) const {
    throw Error(ErrorKind::runtime, "split '" + split_ + "': " + what, remedy);
  }

  // Two neighbours in the order of steps.
  void check(const Range& a, const Range& b, int64_t epoch_steps) const {
    const bool same_report = a.report == b.report;
    const std::string who = same_report ? name(a.report) : name(a.report) + " and " + name(b.report);
    if (b.epoch == a.epoch && b.first < a.end) {
      const int64_t end = std::min(a.end, b.end);
      fail(steps_text(a.epoch, b.first, end) + (end - b.first == 1 ? " stands" : " stand") +
           (same_report ? " twice in " : " both in ") + who);
    }
    if (b.epoch == a.epoch && b.first > a.end) {
      fail(missing_text(a.epoch, a.end, b.first) + " (" + name(a.report) + " ends with step " +
           std::to_string(a.end - 1) + ", " + name(b.report) + " goes on with step " + std::to_string(b.first) + ")");
    }
    if (b.epoch == a.epoch || same_report) return;
    if (a.end < epoch_steps) fail(missing_text(a.epoch, a.end, epoch_steps));
    if (b.epoch > a.epoch + 1) {
      fail("epochs " + std::to_string(a.epoch + 1) + " to " + std::to_string(b.epoch - 1) + " are in no report");
    }
    if (b.first > 0) fail(missing_text(b.epoch, 0, b.first));
  }

  Part part_of(size_t report) const {
    Part part;
    std::optional<int64_t> first_replica;
    const json ranks = reports_[report].second.value("ranks", json::array());
    for (const json& rank : ranks) {
      if (rank.value("role", "") != "trainer" || !rank.value("counted", true)) continue;
      const int64_t replica = rank.value("replica", int64_t{0});
      const std::vector<Range> ranges = add_rank(report, rank, part);
      if (!first_replica) {
        first_replica = replica;
        part.ranges = ranges;
      } else if (!same(part.ranges, ranges)) {
        fail("in " + name(report) + " replica " + std::to_string(*first_replica) + " was given " + list(part.ranges) +
             ", and replica " + std::to_string(replica) + " " + list(ranges));
      } else {
        for (size_t i = 0; i < ranges.size(); ++i) {
          part.ranges[i].hash += ranges[i].hash;
          part.ranges[i].batches += ranges[i].batches;
        }
      }
    }
    return part;
  }

  std::vector<Range> add_rank(size_t report, const json& rank, Part& part) const {
    std::vector<Range> ranges;
    const json splits = rank.value("splits", json::object());
    const auto mine = splits.find(split_);
    if (mine == splits.end()) return ranges;
    if (mine->contains("ranges_left_out")) fail(name(report) + " has only its latest ranges of steps");
    StreamHash sum;
    for (const json& range : mine->value("ranges", json::array())) {
      Range& one = ranges.emplace_back(Range{range.at("epoch"), range.at("first_step"), range.at("end_step"), report});
      one.hash.order = hash_in(report, range, "order_hash");
      one.hash.pixel = hash_in(report, range, "pixel_hash");
      one.batches = one.end - one.first;
      sum += one.hash;
    }
    if (sum.order.hex() != mine->at("order_hash") || sum.pixel.hex() != mine->at("pixel_hash")) {
      fail("in " + name(report) + " the hashes of trainer " + std::to_string(rank.value("trainer", 0)) +
           "'s ranges are not those of all it was given");
    }
    std::stable_sort(ranges.begin(), ranges.end(), before);
    part.hash += sum;
    part.batches += mine->value("batches", int64_t{0});
    part.epoch_steps = std::max(part.epoch_steps, mine->value("epoch_steps", int64_t{0}));
    part.arithmetic = mine->value("arithmetic", "exact");
    return evaluation_ ? ranges : joined(ranges);
  }

  Sum128 hash_in(size_t report, const json& range, const char* key) const {
    try {
      return Sum128::from_hex(range.at(key).get<std::string>());
    } catch (const Error& error) {
      fail("in " + name(report) + " " + key + " is " + error.message());
    }
  }

  // Ranges that follow each other are one; those that overlap stay apart, and are complained of.
  static std::vector<Range> joined(const std::vector<Range>& ranges) {
    std::vector<Range> fewer;
    for (const Range& range : ranges) {
      const bool goes_on = !fewer.empty() && fewer.back().epoch == range.epoch && fewer.back().end == range.first;
      if (goes_on) {
        fewer.back().end = range.end;
        fewer.back().hash += range.hash;
        fewer.back().batches += range.batches;
      } else {
        fewer.push_back(range);
      }
    }
    return fewer;
  }
  static bool same(const std::vector<Range>& a, const std::vector<Range>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Range& x, const Range& y) {
      return x.epoch == y.epoch && x.first == y.first && x.end == y.end;
    });
  }
  static std::string list(const std::vector<Range>& ranges) {
    if (ranges.empty()) return "nothing";
    return text_of(ranges.front()) + (ranges.size() == 1 ? "" : ", …, " + text_of(ranges.back()));
  }

  const std::vector<NamedReport>& reports_;
  std::string split_;
  bool evaluation_ = false;
};

}  // namespace

json printed_report(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  json report = parse_json_or_nothing(text);
  if (report.is_discarded()) report = parse_json_or_nothing(text.substr(text.rfind('\n') + 1));
  return report;
}

json join_reports(const std::vector<NamedReport>& reports, const std::set<std::string>& splits) {
  std::set<std::string> names = splits;
  for (const auto& [name, report] : reports) {
    if (!report.is_object() || !report.contains("ranks") || !report.contains("splits")) {
      throw Error(ErrorKind::runtime, "'" + name + "' is no report of a job",
                  "`penstock run --json` prints one as the last line on stdout");
    }
    if (!splits.empty()) continue;
    for (const auto& [split, sums] : report["splits"].items()) names.insert(split);
  }
  json joined{{"splits", json::object()}, {"left_out", json::array()}};
  try {
    if (splits.empty()) {
      std::erase_if(names, [&](const std::string& split) {
        const bool evaluation = Joiner(reports, split).is_evaluation();
        if (evaluation) joined["left_out"].push_back(split);
        return evaluation;
      });
    }
    for (const std::string& split : names) joined["splits"][split] = Joiner(reports, split).join();
  } catch (const json::exception& error) {
    throw Error(ErrorKind::runtime, std::string("a report cannot be understood: ") + error.what(), kRemedy);
  }
  return joined;
}

std::string joined_text(const json& joined) {
  std::string text;
  for (const auto& [name, split] : joined["splits"].items()) {
    const auto number = [&split = split](const char* key) { return std::to_string(split[key].get<int64_t>()); };
    text += name + ": epoch " + number("first_epoch") + ", step " + number("first_step") + " to epoch " +
            number("last_epoch") + ", step " + std::to_string(split["end_step"].get<int64_t>() - 1) +
            ", each once: " + number("batches") + " batches" + evaluations_text(split) + "\n  order_hash " +
            split["order_hash"].get<std::string>() + "\n  pixel_hash " + split["pixel_hash"].get<std::string>() + "\n";
  }
  for (const json& name : joined["left_out"]) {
    const auto split = name.get<std::string>();
    text += "left out: " + split + " (mode: eval), which may be evaluated again and again; --split " + split +
            " compares its evaluations\n";
  }
  return text;
}

}  // namespace penstock
