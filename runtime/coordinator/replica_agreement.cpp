#include "runtime/coordinator/replica_agreement.h"

#include <algorithm>

#include "runtime/job/job.h"

namespace penstock {
namespace {

// How many cursors are kept that some replica has not reached: a replica that never does must not fill memory.
constexpr size_t kCursorsKept = 4096;

std::string cursor_text(int64_t epoch, int64_t step) {
  return "epoch " + std::to_string(epoch) + ", step " + std::to_string(step);
}

}  // namespace

size_t ReplicaAgreement::number_of(Split& split, const Program& who) {
  std::vector<int64_t>& programs = split.programs[who.receiver];
  const auto known = std::find(programs.begin(), programs.end(), who.program);
  if (known != programs.end()) return static_cast<size_t>(known - programs.begin());
  programs.push_back(who.program);
  return programs.size() - 1;
}

std::optional<std::string> ReplicaAgreement::opened(const Program& who, const std::string& split, int32_t opening,
                                                    const std::string& json) {
  if (receivers_ < 2) return std::nullopt;
  Split& known = splits_[split];
  Opening& first = known.openings[{number_of(known, who), opening}];
  if (first.json.empty()) {
    first.json = json;
    first.replica = who.replica;
    return std::nullopt;
  }
  if (first.json == json) return std::nullopt;
  return "trainer " + std::to_string(who.replica) + " opens split '" + split + "' differently from trainer " +
         std::to_string(first.replica) + ": " + first_difference(json, first.json);
}

std::optional<std::string> ReplicaAgreement::began(const Program& who, const std::string& split, int32_t opening,
                                                   int64_t epoch, int64_t first_step) {
  if (receivers_ < 2) return std::nullopt;
  Split& known = splits_[split];
  Opening& all = known.openings[{number_of(known, who), opening}];
  Progress& mine = all.progress[who.receiver];
  const Cursor cursor{epoch, first_step, who.replica};
  if (mine.count > 0 && mine.last == cursor) return std::nullopt;
  const int64_t number = mine.count++;
  mine.last = cursor;
  const auto [it, fresh] = all.cursors.emplace(number, cursor);
  if (fresh) {
    if (all.cursors.size() > kCursorsKept) all.cursors.erase(all.cursors.begin());
    return std::nullopt;
  }
  Cursor& first = it->second;
  if (!(first == cursor)) {
    return "trainer " + std::to_string(who.replica) + " begins an iteration over split '" + split + "' at " +
           cursor_text(epoch, first_step) + ", where trainer " + std::to_string(first.replica) + " began at " +
           cursor_text(first.epoch, first.step);
  }
  if (++first.reached_by == receivers_) all.cursors.erase(it);
  return std::nullopt;
}

void ReplicaAgreement::forget() {
  splits_.clear();
}

}  // namespace penstock
