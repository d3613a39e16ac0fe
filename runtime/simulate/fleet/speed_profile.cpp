#include "runtime/simulate/fleet/speed_profile.h"

#include <algorithm>
#include <iterator>
#include <map>

#include "runtime/base/error.h"

namespace penstock {
namespace {

// A double would lose nanoseconds after some weeks of work.
__extension__ using Wide = __int128;

}  // namespace

SpeedProfile::SpeedProfile(std::vector<Change> changes) {
  if (changes.empty() || changes.front().at > 0) changes.insert(changes.begin(), {0, kFullSpeed});
  for (size_t i = 0; i < changes.size(); ++i) {
    const bool in_order = i == 0 || changes[i - 1].at < changes[i].at;
    if (changes[i].at >= 0 && in_order && changes[i].speed >= 0 && changes[i].speed <= 1000 * kFullSpeed) continue;
    throw Error(ErrorKind::usage, "a speed changes at times in order, to 0 or more and at most 1,000",
                "sort the changes, and give each time once");
  }
  changes_ = std::move(changes);
}

size_t SpeedProfile::place(Nanoseconds when) const {
  const auto after = std::upper_bound(changes_.begin(), changes_.end(), when,
                                      [](Nanoseconds wanted, const Change& change) { return wanted < change.at; });
  return static_cast<size_t>(std::max<std::ptrdiff_t>(0, std::distance(changes_.begin(), after) - 1));
}

Nanoseconds SpeedProfile::finish(Nanoseconds begin, Nanoseconds work) const {
  if (changes_.size() == 1 && changes_.front().speed == kFullSpeed) return begin + work;
  Wide left = Wide{work} * kFullSpeed;
  Nanoseconds now = begin;
  for (size_t i = place(begin); i < changes_.size(); ++i) {
    const Wide speed = changes_[i].speed;
    const bool last = i + 1 == changes_.size();
    if (speed > 0 && (last || left <= Wide{changes_[i + 1].at - now} * speed)) {
      return now + static_cast<Nanoseconds>((left + speed - 1) / speed);
    }
    if (last) break;
    left -= Wide{changes_[i + 1].at - now} * speed;
    now = changes_[i + 1].at;
  }
  return kNever;
}

int64_t SpeedProfile::at(Nanoseconds when) const {
  return changes_[place(when)].speed;
}

SpeedProfile SpeedProfile::times(double factor) const {
  std::vector<Change> changes = changes_;
  for (Change& change : changes) {
    change.speed = static_cast<int64_t>(static_cast<double>(change.speed) * factor + 0.5);
  }
  return SpeedProfile(std::move(changes));
}

SpeedProfile SpeedProfile::during(Nanoseconds begin, Nanoseconds end, double factor) const {
  std::map<Nanoseconds, int64_t> speeds;
  for (const Change& change : changes_) speeds[change.at] = change.speed;
  speeds.emplace(begin, at(begin));
  if (end != kNever) speeds.emplace(end, at(end));
  std::vector<Change> changes;
  for (const auto& [when, speed] : speeds) {
    const bool within = when >= begin && when < end;
    changes.push_back({when, within ? static_cast<int64_t>(static_cast<double>(speed) * factor + 0.5) : speed});
  }
  return SpeedProfile(std::move(changes));
}

Nanoseconds SpeedProfile::work(Nanoseconds begin, Nanoseconds end) const {
  Wide done = 0;
  Nanoseconds now = begin;
  for (size_t i = place(begin); now < end; ++i) {
    const Nanoseconds until = i + 1 < changes_.size() ? std::min(end, changes_[i + 1].at) : end;
    done += Wide{until - now} * changes_[i].speed;
    now = until;
  }
  return static_cast<Nanoseconds>(done / kFullSpeed);
}

}  // namespace penstock
