#include "launch/job_outcome.h"

#include <sys/wait.h>

#include <algorithm>
#include <cmath>

#include "runtime/base/error.h"
#include "runtime/process/tree.h"

namespace penstock {
namespace {

constexpr int kLost = static_cast<int>(ErrorKind::peer_lost);

constexpr double kStart_s = 5;  // for ranks that meet the same mistake: rank 0 is given time to speak first
// For ranks that wait for the same one: each gives up as long after it began as the first one did, or a few seconds later
// where it only waits at a barrier. Rank 0 is given time to speak first here, too.
constexpr double kGiveUp_s = 10;
constexpr double kMeetBeyond_s = 30;  // ranks speak before launch ends the start
constexpr double kFinish_s = 15;      // at the most, for the end of MPI behind the program's grace
constexpr double kLeave_s = 3;
constexpr double kNotice_s = 0.5;  // most trainers do so at once
// For mpirun, when no rank is left. Where a daemon was lost, or a rank left before the others, Open MPI 4 waits for ever,
// and nothing that it could still do is wanted.
constexpr double kOver_s = 10;
constexpr double kOverAfterLoss_s = 2;
// mpirun starts a host's ranks within milliseconds of each other, a loaded host within a second or two. Where many ranks share
// few cores it takes longer: who acts on this looks at mpirun first (run_mpirun.cpp).
constexpr double kLate_s = 4;
constexpr double kAwaited_s = 10;
constexpr double kTogether_s = 1;  // ranks leave within this time, in a good end

std::string whole_seconds(double seconds) {
  return std::to_string(std::llround(seconds)) + " s";
}

bool passed(Nanoseconds since, double limit_s, Nanoseconds now) {
  return as_seconds(now - since) > limit_s;
}

}  // namespace

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

void JobOutcome::began(int rank, const std::string& host, Nanoseconds now) {
  if (rank < 0 || rank >= spec_.ranks) return;
  ranks_[rank].host = host;
  ranks_[rank].began_at = now;
  last_change_ = now;
}

void JobOutcome::running(int rank, Nanoseconds now, bool loads) {
  if (const auto it = ranks_.find(rank); it != ranks_.end()) {
    it->second.running = true;
    it->second.loads = loads;
  }
  last_change_ = now;
}

void JobOutcome::will_end(int rank, int exit_code, const std::string& why, Nanoseconds now) {
  const auto it = ranks_.find(rank);
  if (it == ranks_.end() || it->second.exit_code || it->second.gone || ended_from_outside_) return;
  it->second.exit_code = exit_code;
  it->second.why = why;
  last_change_ = now;
}

void JobOutcome::ended(int rank, int exit_code, const std::string& why, Nanoseconds now, bool mpi_ended) {
  will_end(rank, exit_code, why, now);
  const auto it = ranks_.find(rank);
  if (it == ranks_.end() || it->second.gone || ended_from_outside_) return;
  mpi_ended_ = mpi_ended_ && mpi_ended;
  hung_up(rank, now);
}

void JobOutcome::hung_up(int rank, Nanoseconds now, std::optional<int> status) {
  const auto it = ranks_.find(rank);
  if (it == ranks_.end() || it->second.gone) return;
  it->second.gone = true;
  it->second.left_at = now;
  it->second.status = status;
  left_.push_back(rank);
  last_change_ = now;
  if (!first_left_) first_left_ = now;
  if (rank == 0) rank_0_left_ = now;
}

void JobOutcome::died_unheard(int rank, const std::string& host) {
  const Nanoseconds before = last_change_;  // it died about when it should have been heard
  began(rank, host, before);
  hung_up(rank, before);
}

std::string JobOutcome::stuck(Nanoseconds now) const {
  if (ranks_.empty()) {
    return passed(last_change_, spec_.begin_s, now) ? "no rank was heard of within " + whole_seconds(spec_.begin_s)
                                                    : "";
  }
  if (!first_left_) {
    if (!any_running() && !unheard().empty() && passed(last_change_, spec_.begin_s, now)) {
      return unheard_text() + (unheard().size() > 1 ? " were" : " was") + " not heard of within " +
             whole_seconds(spec_.begin_s) + ", while the others wait";
    }
    return !any_running() && passed(last_change_, meet_s(), now)
               ? "the ranks did not meet within " + whole_seconds(meet_s())
               : "";
  }
  const auto count = [this](auto of) {
    return std::count_if(ranks_.begin(), ranks_.end(), [&](const auto& item) { return of(item.second); });
  };
  const auto gone = count([](const Rank& rank) { return rank.gone; });
  if (gone == spec_.ranks) {
    const bool one_by_one = rank_0_left_ && passed(*first_left_, kTogether_s, *rank_0_left_);
    const double over_s = one_by_one || lost_a_rank() || !mpi_ended_ ? kOverAfterLoss_s : kOver_s;
    return passed(last_change_, over_s, now) ? "all ranks have ended, and mpirun has not" : "";
  }
  // One that runs has met all others, also those that do not reach us.
  if (!any_running()) {
    const Rank& first = ranks_.at(left_.front());
    if (!waited_in_vain(first)) {
      return passed(*first_left_, kStart_s, now) ? name(left_.front()) + " left while the job was starting" : "";
    }
    return passed(*first_left_ + last_began_after(first), kGiveUp_s, now)
               ? name(left_.front()) + " has waited for the others in vain while the job was starting"
               : "";
  }
  if (!rank_0_left_) {
    // Alone, and given up by somebody: awake it would have noticed that the others are gone, and have ended.
    const auto lost = count([](const Rank& rank) { return rank.exit_code == kLost; });
    const double waking_s = spec_.grace_s + spec_.lost_after_s + kLeave_s;
    const bool alone = gone == spec_.ranks - 1;
    if (alone && lost > 0 && passed(last_change_, waking_s, now)) {
      return name(0) + " was given up by the others, and has not ended";
    }
    const auto zero = ranks_.find(0);
    const bool failed = zero != ranks_.end() && zero->second.exit_code.value_or(0) != 0;
    if (alone && failed && passed(last_change_, waking_s + kFinish_s, now)) {
      return name(0) + " has said that the job failed, and has not ended";
    }
    // No job outlives a trainer. A rank 0 that is awake learns of its end at the latest by silence, whoever else may
    // have been lost with rank 0's host, or stand as rank 0 does.
    const auto trainer = std::find_if(ranks_.begin(), ranks_.end(), [&](const auto& item) {
      const Rank& one = item.second;
      return one.gone && one.running && !one.loads && one.exit_code.value_or(0) != 0 &&
             passed(one.left_at, waking_s + 2 * spec_.lost_after_s, now);
    });
    if (trainer == ranks_.end()) return {};
    return name(0) + " has not ended, though " + name(trainer->first) + " left with exit code " +
           std::to_string(*trainer->second.exit_code);
  }
  // Who is left by a rank 0 that has said how the job ended knows it too, and gives its program the grace. So do those
  // whom launch asks to end (wants_an_end()), where rank 0 is gone without a word.
  const bool programs = count([](const Rank& rank) { return !rank.gone && !rank.loads; }) > 0;
  const double leaving_s = (programs ? spec_.grace_s : 0) + kLeave_s;
  if (!passed(*rank_0_left_, leaving_s, now)) return {};
  const auto late = std::find_if(ranks_.begin(), ranks_.end(), [](const auto& item) { return !item.second.gone; });
  if (late == ranks_.end()) return "all ranks that were heard of have ended, and mpirun has not";
  if (lost_rank_0()) return name(0) + " is gone without a word, and " + name(late->first) + " has not ended since";
  return name(late->first) + " is still there after rank 0 has left";
}

bool JobOutcome::began_on(int rank, const std::string& host) const {
  const auto it = ranks_.find(rank);
  return it != ranks_.end() && it->second.host == host;
}

bool JobOutcome::lost_rank_0() const {
  const auto zero = ranks_.find(0);
  return zero != ranks_.end() && zero->second.gone && !zero->second.silent && !zero->second.exit_code;
}

bool JobOutcome::wants_an_end(Nanoseconds now) const {
  return lost_rank_0() && passed(*rank_0_left_, kNotice_s, now) &&
         std::any_of(ranks_.begin(), ranks_.end(),
                     [](const auto& item) { return item.second.running && !item.second.loads && !item.second.gone; });
}

std::string JobOutcome::left() const {
  std::string text;
  size_t more = 0;
  for (const auto& [rank, one] : ranks_) {
    if (one.gone) continue;
    if (text.empty()) {
      text = name(rank);
    } else {
      ++more;
    }
  }
  return more > 0 ? text + " and " + std::to_string(more) + " more" : text;
}

std::vector<int> JobOutcome::unheard() const {
  std::vector<int> list;
  for (int rank = 0; rank < spec_.ranks; ++rank) {
    if (ranks_.count(rank) == 0) list.push_back(rank);
  }
  return list;
}

std::string JobOutcome::unheard_text() const {
  const std::vector<int> list = unheard();
  const auto first = static_cast<size_t>(list.front());
  std::string text = "rank " + std::to_string(first);
  if (first < spec_.hosts.size()) text += " (host " + spec_.hosts[first] + ")";
  if (list.size() > 1) text += " and " + std::to_string(list.size() - 1) + " more";
  return text;
}

std::vector<int> JobOutcome::late(Nanoseconds now) const {
  const bool waits = !ranks_.empty() && !first_left_ && !any_running();
  return waits && passed(last_change_, kLate_s, now) ? unheard() : std::vector<int>{};
}

std::string JobOutcome::awaited(Nanoseconds now) const {
  return !late(now).empty() && passed(last_change_, kAwaited_s, now) ? unheard_text() : "";
}

void JobOutcome::ended_from_outside(Nanoseconds now) {
  for (auto& [rank, one] : ranks_) {
    one.silent = one.silent || !one.gone;
    hung_up(rank, now);
  }
  ended_from_outside_ = true;
}

bool JobOutcome::any_running() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [](const auto& item) { return item.second.running; });
}

bool JobOutcome::awaits_last_words() const {
  return !ended_from_outside_ && std::any_of(ranks_.begin(), ranks_.end(), [](const auto& item) {
    return !item.second.gone && !item.second.exit_code;
  });
}

bool JobOutcome::lost_a_rank() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [](const auto& item) {
    return item.second.gone && item.second.exit_code.value_or(kLost) == kLost;
  });
}

const std::pair<const int, JobOutcome::Rank>* JobOutcome::speaker() const {
  if (const auto zero = ranks_.find(0); zero != ranks_.end() && zero->second.exit_code) return &*zero;
  // No job outlives a trainer, so the first trainer's error is how the job ended. A loader's may be one that the job
  // went on after, or tell of no more than the loader's own links.
  for (const bool loads : {false, true}) {
    for (const int rank : left_) {
      const auto it = ranks_.find(rank);
      if (it->second.loads == loads && it->second.exit_code.value_or(0) != 0) return &*it;
    }
  }
  return nullptr;
}

int JobOutcome::code() const {
  const auto* said = speaker();
  return said != nullptr ? *said->second.exit_code : kLost;
}

std::vector<int> JobOutcome::killed() const {
  // One that lost the others may still have reached us, as a loader does that hears nothing more and is heard.
  const bool complete = code() == 0;
  std::vector<int> list;
  for (const int rank : left_) {
    const Rank& one = ranks_.at(rank);
    if (!one.silent && (!one.exit_code || (complete && *one.exit_code == kLost))) list.push_back(rank);
  }
  return list;
}

std::vector<int> JobOutcome::failed_alone() const {
  std::vector<int> list;
  if (code() != 0) return list;
  for (const int rank : left_) {
    const int said = ranks_.at(rank).exit_code.value_or(0);
    if (said != 0 && said != kLost) list.push_back(rank);
  }
  return list;
}

// The slowest start that ends well takes less than two of its steps may.
double JobOutcome::meet_s() const {
  return 2 * spec_.start_s + kMeetBeyond_s;
}

// The same code at once means something else: that the end was asked for, or that a socket is another's.
bool JobOutcome::waited_in_vain(const Rank& rank) const {
  return rank.exit_code == kLost && as_seconds(rank.left_at - rank.began_at) > 0.8 * spec_.start_s;
}

bool JobOutcome::all_waited_in_vain() const {
  const auto by_itself = [this](int rank) { return !ranks_.at(rank).silent; };
  const auto in_vain = [this](int rank) { return ranks_.at(rank).silent || waited_in_vain(ranks_.at(rank)); };
  return std::any_of(left_.begin(), left_.end(), by_itself) && std::all_of(left_.begin(), left_.end(), in_vain);
}

Nanoseconds JobOutcome::last_began_after(const Rank& rank) const {
  Nanoseconds last = rank.began_at;
  for (const auto& [number, one] : ranks_) {
    if (!one.gone && one.began_at <= *first_left_) last = std::max(last, one.began_at);
  }
  return last - rank.began_at;
}

// While the job was starting they may only have waited for the others, unless those have waited for them in vain. Where
// rank 0 is gone without a word, some may not have noticed it yet: on other hosts loaders do so by silence.
std::vector<int> JobOutcome::silent() const {
  std::vector<int> list;
  if (lost_rank_0() || !(any_running() || all_waited_in_vain())) return list;
  for (const auto& [rank, one] : ranks_) {
    // Who began when others had given up was not waited for.
    if (one.silent && one.began_at <= *first_left_) list.push_back(rank);
  }
  return list;
}

std::string JobOutcome::name(int rank) const {
  return "rank " + std::to_string(rank) + " (host " + ranks_.at(rank).host + ")";
}

std::string JobOutcome::summary() const {
  std::string text;
  const auto* said = speaker();
  const std::vector<int> lost = killed();
  const std::vector<int> ended = silent();
  const std::vector<int> failed = failed_alone();
  if (code() != 0) {
    text = "the job failed with exit code " + std::to_string(code());
    if (said == nullptr) {
      text += ": no rank said how it ended";
    } else {
      text += ", says " + name(said->first);
      if (!said->second.why.empty()) text += ": " + first_line(said->second.why);
    }
    if (!any_running() && !unheard().empty()) {
      text += "; " + unheard_text() + (unheard().size() > 1 ? " were" : " was") + " never heard of";
    }
  } else if (!lost.empty() || !ended.empty() || !failed.empty() || !back_.empty()) {
    text = "the job is complete";
  }
  for (const int rank : failed) {
    const Rank& one = ranks_.at(rank);
    text += "; " + name(rank) + " ended with exit code " + std::to_string(*one.exit_code);
    if (!one.why.empty()) text += ": " + first_line(one.why);
  }
  std::map<std::string, std::string> how;
  for (const int rank : lost) {
    const std::optional<int> status = ranks_.at(rank).status;
    std::string what = "killed, or cut off with its host";
    if (status && WIFSIGNALED(*status)) what = "killed by " + signal_name(WTERMSIG(*status));
    if (status && WIFEXITED(*status)) what = "left without a word, with status " + std::to_string(WEXITSTATUS(*status));
    std::string& names = how[what];
    names += (names.empty() ? "" : ", ") + name(rank);
  }
  for (const auto& [what, names] : how) text += "; " + what + ": " + names;
  for (size_t i = 0; i < ended.size(); ++i) {
    text += (i == 0 ? "; silent until it was ended (stopped, or cut off): " : ", ") + name(ended[i]);
  }
  if (code() == 0 && !back_.empty()) text += "; lost for a while, and back: " + back_;
  return text;
}

}  // namespace penstock
