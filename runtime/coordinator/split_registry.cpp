#include "runtime/coordinator/split_registry.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "runtime/balancer/balancer.h"
#include "runtime/base/error.h"
#include "runtime/coordinator/epoch_plan.h"

namespace penstock {
namespace {

constexpr int64_t kLargestChunk = 16;
constexpr Nanoseconds kAskAgainAfter = 10 * kSecond;  // a loader that could not open a split
constexpr Nanoseconds kLongListing = 10 * kSecond;    // after which people are told who is waited for

// For messages, which stay short where there are hundreds.
std::string first_of(const std::set<std::string>& all) {
  constexpr size_t most = 3;
  std::string text;
  size_t listed = 0;
  for (const std::string& one : all) {
    if (listed == most) return text + " and " + std::to_string(all.size() - most) + " more";
    text += (listed++ == 0 ? "" : ", ") + one;
  }
  return text;
}

}  // namespace

SplitAsked read_numbers(SplitAsked asked) {
  asked.numbers = std::make_shared<SamplerNumbers>(read_sampler_file(asked.resolved));
  check_weights_of(asked.resolved, *asked.numbers);
  return asked;
}

SplitAsked SplitRegistry::parse(const OpenSplit& m) {
  SplitAsked asked{fingerprint_of(m.json), split_from_json(m.json), nullptr};
  const Split* known = newest(asked.described);
  const bool wanted = known == nullptr || known->failed;
  asked.reads = wanted && !asked.resolved.split.sampler.file().empty();
  if (wanted && !asked.reads) asked.numbers = std::make_shared<SamplerNumbers>();
  return asked;
}

void SplitRegistry::open(const Opening& opening, size_t program_number, const OpenSplit& m, SplitAsked asked) {
  Fingerprint& looked = looked_for(opening.first, {asked.described, program_number, m.opening});
  Split& split = choose(looked, m, asked);
  if (split.like == 0) prepare_everywhere(split);
  split.waiting.insert(opening);
  split.open_at.insert(opening);
  settle(split);
}

void SplitRegistry::close(const Opening& opening) {
  for (auto& [fingerprint, split] : splits_) {
    split.open_at.erase(opening);
    split.waiting.erase(opening);
  }
}

void SplitRegistry::loader_joined(PeerId loader) {
  living_.insert(loader);
  lost_.erase(loader);
  for (auto& [fingerprint, split] : splits_) {
    if (split.like == 0) prepare_at(loader, split);  // what others look at again is none of a newcomer's
  }
}

// A split that waited for this loader's answer goes on without it, or fails where nobody is left.
void SplitRegistry::loader_lost(PeerId loader) {
  living_.erase(loader);
  lost_.insert(loader);
  last_loss_ns_ = clock_.now();
  std::vector<Fingerprint> all;
  for (const auto& [fingerprint, split] : splits_) all.push_back(fingerprint);
  for (const Fingerprint fingerprint : all) {
    const auto it = splits_.find(fingerprint);
    if (it == splits_.end()) continue;  // was the same as another
    it->second.asked.erase(loader);     // it is asked again where it joins again
    it->second.opened.disks.forget(loader);
    it->second.opened.same_list.erase(loader);
    it->second.same_at.erase(loader);
    it->second.lacking.erase(loader);
    it->second.left_out.erase(loader);
    it->second.waiting_for.erase(loader);
    if (it->second.sizes_from == loader) ask_another_for_sizes(it->second);
    // Who was left out is all that there is now, and its disk may be well again.
    if (it->second.opened.same_list.empty()) ask_left_out(it->second, 0);
    settle(it->second);
  }
}

OpenedSplit* SplitRegistry::find(Fingerprint fingerprint) {
  const auto it = splits_.find(fingerprint);
  return it == splits_.end() || !it->second.opened.plans.ready() ? nullptr : &it->second.opened;
}

void SplitRegistry::prepare_at(PeerId loader, Split& split) {
  if (!split.asked.insert(loader).second) return;
  split.waiting_for[loader] = {clock_.now(), false};
  send_(loader, PrepareSplit{split.fingerprint, split.json, split.opened.max_chunk_samples, split.like});
}

// The next part: one that a loader answers within a millisecond.
void SplitRegistry::ask_sizes(Split& split, PeerId loader) {
  constexpr int32_t kPart = 1 << 15;
  split.sizes_from = -1;
  const int64_t left = split.opened.prepared.dataset_size - split.sizes_until;
  if (left <= 0) return;
  split.sizes_from = loader;
  const auto part = static_cast<int32_t>(std::min<int64_t>(left, kPart));
  send_(loader, SizesAsked{split.fingerprint, split.sizes_until, part});
}

// The one that was asked is lost. Those that do not have it open know nothing of the samples.
void SplitRegistry::ask_another_for_sizes(Split& split) {
  split.sizes_from = -1;
  const std::set<PeerId>& all = split.opened.same_list;
  if (!all.empty()) ask_sizes(split, *all.begin());
}

void SplitRegistry::sizes_told(PeerId loader, const SizesTold& m) {
  const auto it = splits_.find(m.fingerprint);
  if (it == splits_.end() || it->second.sizes_from != loader) return;
  Split& split = it->second;
  const int64_t size = split.opened.prepared.dataset_size;
  if (m.codes.empty() || m.first < 0 || m.first > size - std::ssize(m.codes)) {  // it knows nothing of them
    split.sizes_from = -1;
    return;
  }
  split.opened.sizes.set(m.first, m.codes);
  split.sizes_until = m.first + std::ssize(m.codes);
  ask_sizes(split, loader);
}

void SplitRegistry::prepare_everywhere(Split& split) {
  for (const PeerId loader : living_) prepare_at(loader, split);
}

SplitRegistry::Split* SplitRegistry::newest(Fingerprint described) {
  Split* found = nullptr;
  for (auto& [fingerprint, split] : splits_) {
    if (split.described == described && (found == nullptr || split.number > found->number)) found = &split;
  }
  return found;
}

// The look that another replica's program has had for its n-th opening, if this is a program's n-th: all of them get
// one list, whatever happens to the files meanwhile.
Fingerprint& SplitRegistry::looked_for(PeerId receiver, const LookKey& key) {
  Look& look = looks_[key];
  look.receivers.insert(receiver);
  if (look.receivers.size() < options_.receivers) return look.split;
  last_look_ = look.split;
  looks_.erase(key);
  return last_look_;
}

// The one that an opening gets: an old one, perhaps after a look whether it is one still, or a new one. `looked`: see
// looked_for.
SplitRegistry::Split& SplitRegistry::choose(Fingerprint& looked, const OpenSplit& m, SplitAsked& asked) {
  if (const auto it = splits_.find(looked); looked != 0 && it != splits_.end()) return it->second;
  std::set<Opening> open_at;
  Split* known = newest(asked.described);
  if (known != nullptr && known->failed) {
    open_at = forget_failed(known->fingerprint);
    known = newest(asked.described);
  }
  // What loaders look at just now was asked for a moment ago. Who has objects in Python has to say itself when they are
  // others.
  const bool again = known != nullptr && known->known && !known->failed && known->like == 0 &&
                     known->waiting_for.empty() && !living_.empty() && !asked.resolved.split.dataset.is_python();
  if (known != nullptr && !again) {
    looked = known->fingerprint;
    return *known;
  }
  if (again) asked.numbers = known->numbers;
  Split& split = add(m, asked);
  split.open_at = std::move(open_at);
  looked = split.fingerprint;
  if (again) {
    split.like = known->fingerprint;
    ++known->looked_at;
    prepare_everywhere(split);
  }
  return split;
}

SplitRegistry::Split& SplitRegistry::add(const OpenSplit& m, SplitAsked& asked) {
  Fingerprint fingerprint = asked.described;
  while (fingerprint == 0 || splits_.count(fingerprint) != 0) {
    fingerprint = fingerprint_of(m.json + "#" + std::to_string(++last_number_));
  }
  Split& split = splits_[fingerprint];
  split.fingerprint = fingerprint;
  split.described = asked.described;
  split.number = ++last_number_;
  split.json = m.json;
  split.numbers = std::move(asked.numbers);
  split.opened.num_replicas = m.num_replicas;
  const int64_t largest = options_.chunk_samples > 0 ? options_.chunk_samples : kLargestChunk;
  split.opened.max_chunk_samples = static_cast<int32_t>(std::min(asked.resolved.split.batch_size, largest));
  split.opened.resolved = std::move(asked.resolved);
  return split;
}

// A split that could not be opened is asked for anew when somebody opens it again: its folder may have been repaired.
// The receivers that have it open all the same: a loader failed that came later.
std::set<SplitRegistry::Opening> SplitRegistry::forget_failed(Fingerprint fingerprint) {
  const auto it = splits_.find(fingerprint);
  if (it == splits_.end() || !it->second.failed || !it->second.waiting_for.empty() || it->second.looked_at > 0 ||
      in_use_(fingerprint)) {
    return {};
  }
  std::set<Opening> open_at = std::move(it->second.open_at);
  splits_.erase(it);
  return open_at;
}

std::string SplitRegistry::name(PeerId loader) const {
  return loader_name(loader, options_.embedded, options_.hosts);
}

void SplitRegistry::prepared(PeerId loader, const SplitPrepared& m) {
  const auto it = splits_.find(m.fingerprint);
  if (it == splits_.end()) return;
  Split& split = it->second;
  split.waiting_for.erase(loader);
  if (split.answered_ns < 0) split.answered_ns = clock_.now();
  if (m.good && m.same && split.like == 0) {
    // It was not waited for, and another one has seen other files since it was asked.
    split.asked.erase(loader);
    if (!split.failed) prepare_at(loader, split);
  } else if (m.good && m.same) {
    split.same_at.insert(loader);
  } else if (!m.good && may_leave_out(m, split)) {
    LeftOut& one = split.left_out[loader];
    one.since = clock_.now();
    one.answer = m;
  } else if (!m.good) {
    fail_by(loader, m, split);
  } else if (!split.known) {
    split.known = true;
    split.opened.prepared = m;
    ask_sizes(split, loader);
  } else if (m.dataset_fingerprint != split.opened.prepared.dataset_fingerprint) {
    split.failed = true;
    split.problem = m;
    split.problem.error_kind = static_cast<int32_t>(ErrorKind::dataset);
    split.problem.error = name(loader) + " sees another dataset for split '" + split.opened.resolved.name +
                          "': " + std::to_string(m.dataset_size) + " samples, not " +
                          std::to_string(split.opened.prepared.dataset_size);
    split.problem.remedy = split.opened.local() ? "copy the same index to every node"
                                                : "make the same files visible under the same path on every node";
  }
  const bool same_data = m.good && !m.same && m.dataset_fingerprint == split.opened.prepared.dataset_fingerprint &&
                         m.dataset_size == split.opened.prepared.dataset_size;
  if (same_data) split.opened.same_list.insert(loader);
  if (m.good) split.left_out.erase(loader);
  if (same_data && split.opened.local()) {
    split.opened.disks.set(loader,
                           m.partial ? IndexRanges(m.readable, m.dataset_size) : IndexRanges::all(m.dataset_size));
    if (!m.lacking.empty()) split.lacking[loader] = m.lacking;
  }
  settle(split);
}

void SplitRegistry::resume() {
  std::vector<Fingerprint> all;
  for (const auto& [fingerprint, split] : splits_) all.push_back(fingerprint);
  for (const Fingerprint fingerprint : all) {
    const auto it = splits_.find(fingerprint);
    if (it != splits_.end() && it->second.opened.local() && !it->second.waiting.empty()) settle(it->second);
  }
}

bool SplitRegistry::is_last_holder(PeerId loader, const std::set<PeerId>& leaving) {
  for (auto& [fingerprint, split] : splits_) {
    OpenedSplit& opened = split.opened;
    const Readable its = opened.disks.of(loader);
    if (its == nullptr || split.open_at.empty()) continue;
    const auto placement = opened.disks.placement(opened.prepared.dataset_size, background_);
    if (placement == nullptr) return true;  // as long as it is not known
    std::set<Readable> others;
    for (const PeerId other : living_) {
      const Readable readable = other == loader || leaving.count(other) != 0 ? nullptr : opened.disks.of(other);
      if (readable != nullptr) others.insert(readable);
    }
    if (others.count(its) != 0) continue;
    std::set<int64_t> at_others;
    for (const Readable& one : others) {
      for (const int64_t group : placement->held_by(one)) at_others.insert(group);
    }
    const std::vector<int64_t> held = placement->held_by(its);
    if (!std::includes(at_others.begin(), at_others.end(), held.begin(), held.end())) return true;
  }
  return false;
}

// Whether the split may be opened without a loader that answered so, where another one has listed it.
bool SplitRegistry::may_leave_out(const SplitPrepared& answer, const Split& split) const {
  const bool open = split.known && split.waiting.empty() && split.like == 0;
  return open || any_iteration_ || answer.may_pass;
}

// Once for each loader, however often it fails.
void SplitRegistry::name_left_out(Split& split) {
  for (auto& [loader, one] : split.left_out) {
    if (std::exchange(one.named, true) || !notice_) continue;
    notice_(name(loader) + " cannot open split '" + split.opened.resolved.name +
            "', takes no part in it, and is asked again every " + std::to_string(kAskAgainAfter / kSecond) +
            " s: " + one.answer.error);
  }
}

void SplitRegistry::ask_left_out(Split& split, Nanoseconds after) {
  if (split.like != 0) return;
  for (const auto& [loader, one] : split.left_out) {
    if (split.waiting_for.count(loader) != 0 || clock_.now() - one.since < after) continue;
    split.asked.erase(loader);
    prepare_at(loader, split);
  }
}

void SplitRegistry::fail_by(PeerId loader, const SplitPrepared& answer, Split& split) const {
  split.failed = true;
  split.problem = answer;
  split.problem.error = name(loader) + ": " + answer.error;
}

void SplitRegistry::tick() {
  for (auto& [fingerprint, split] : splits_) {
    // Whether anybody can open it must come to an end.
    if (split.waiting.empty() || !nobody_has(split) || may_return()) ask_left_out(split, kAskAgainAfter);
  }
  std::vector<Fingerprint> all;
  for (const auto& [fingerprint, split] : splits_) {
    const bool waits = !split.waiting_for.empty() || !split.left_out.empty();
    if (!split.waiting.empty() && waits) all.push_back(fingerprint);
  }
  for (const Fingerprint fingerprint : all) {
    const auto it = splits_.find(fingerprint);
    if (it == splits_.end()) continue;
    std::set<PeerId> late;
    for (const auto& [loader, wait] : it->second.waiting_for) {
      if (it->second.left_out.count(loader) == 0) late.insert(loader);
    }
    const std::string split = it->second.opened.resolved.name;
    settle(it->second);
    const auto after = splits_.find(fingerprint);
    if (after != splits_.end() && !after->second.waiting.empty()) {
      name_the_late(after->second);
    } else if (notice_ && !late.empty() && (after == splits_.end() || !after->second.failed)) {
      notice_("split '" + split + "' does not wait any longer for " + names(late) +
              ", of which heartbeats come and no list of its files; who has one later takes part from then on");
    }
  }
  end_waits_for_lost();
}

// The end of this wait comes with no message, so it is looked for.
void SplitRegistry::end_waits_for_lost() {
  if (lost_.empty() || may_return()) return;
  std::vector<Fingerprint> all;
  for (const auto& [fingerprint, split] : splits_) {
    if (!split.waiting.empty() && split.waiting_for.empty()) all.push_back(fingerprint);
  }
  for (const Fingerprint fingerprint : all) {
    const auto it = splits_.find(fingerprint);
    if (it != splits_.end()) settle(it->second);
  }
}

void SplitRegistry::nobody_returns() {
  options_.all_lost_ns = 0;
  end_waits_for_lost();
}

// Where the job waits for loaders that were lost, one of them may still come back and read what nobody else can.
bool SplitRegistry::may_return() const {
  return !lost_.empty() && clock_.now() - last_loss_ns_ < options_.all_lost_ns;
}

// Is there a loader whose answer can still be waited for? Late ones are not, where another one has answered.
bool SplitRegistry::must_wait(const Split& split) const {
  const bool any_answer = split.known || split.failed || !split.same_at.empty() || !split.left_out.empty();
  if (!any_answer) return !split.waiting_for.empty();
  // One that can open it may still be to join.
  const bool all_came = living_.size() + lost_.size() >= options_.loaders;
  if (nobody_can(split) && !all_came && clock_.now() - split.answered_ns < options_.go_on_after_ns) return true;
  // One that was left out is waited for only as the last.
  const bool last = nobody_has(split);
  return std::any_of(split.waiting_for.begin(), split.waiting_for.end(), [&](const auto& item) {
    return (last || split.left_out.count(item.first) == 0) && !is_late(split, item.second);
  });
}

// No living loader has listed it, or, where it is looked at again, found it as it was.
bool SplitRegistry::nobody_has(const Split& split) const {
  return split.opened.same_list.empty() && split.same_at.empty();
}

// None of those that have answered can open it.
bool SplitRegistry::nobody_can(const Split& split) const {
  return !split.failed && !split.left_out.empty() && nobody_has(split);
}

// The time counts from the first answer, too: where listing takes minutes everywhere, the first loader to end it would
// otherwise leave all others behind. Where it is all that there is, it has as much time as a program waits.
bool SplitRegistry::is_late(const Split& split, const Wait& wait) const {
  const Nanoseconds now = clock_.now();
  if (!split.failed && nobody_has(split) && now - wait.since < options_.listing_ns) return false;
  return now - std::max(wait.since, split.answered_ns) >= options_.go_on_after_ns;
}

bool SplitRegistry::will_answer(PeerId loader, Fingerprint fingerprint) const {
  const auto split = splits_.find(fingerprint);
  if (split == splits_.end()) return false;
  const auto wait = split->second.waiting_for.find(loader);
  return wait != split->second.waiting_for.end() && !is_late(split->second, wait->second);
}

// Who lists its files, or tries again, and since when.
std::set<std::string> SplitRegistry::silences(const Split& split) const {
  std::set<std::string> all;
  for (const auto& [loader, wait] : split.waiting_for) {
    if (split.left_out.count(loader) != 0) continue;
    all.insert(name(loader) + " lives, and has sent no list of its files for " +
               seconds_text(clock_.now() - wait.since));
  }
  return all;
}

std::string SplitRegistry::why_not_open(Fingerprint fingerprint) const {
  const auto split = splits_.find(fingerprint);
  if (split == splits_.end()) return {};
  std::set<std::string> all = silences(split->second);
  for (const auto& [loader, one] : split->second.left_out) all.insert(name(loader) + ": " + one.answer.error);
  if (split->second.failed)
    all.insert(split->second.problem.error);  // one sees other files than those that are lost saw
  return first_of(all);
}

// Once for each loader that is asked.
void SplitRegistry::name_the_late(Split& split) {
  std::set<PeerId> late;
  for (auto& [loader, wait] : split.waiting_for) {
    if (clock_.now() - wait.since >= kLongListing && !std::exchange(wait.named, true)) late.insert(loader);
  }
  if (late.empty() || !notice_) return;
  std::set<std::string> receivers;
  for (const auto& [receiver, number] : split.waiting) receivers.insert("rank " + std::to_string(receiver));
  const std::string who = options_.embedded ? "the program" : first_of(receivers) + " (trainer)";
  notice_(who + " waited " + std::to_string(kLongListing / kSecond) + " s for split '" + split.opened.resolved.name +
          "', of whose files there is no list yet from " + names(late) +
          ": the data set is large, or the file system slow or hung");
}

std::string SplitRegistry::names(const std::set<PeerId>& loaders) const {
  std::set<std::string> all;
  for (const PeerId loader : loaders) all.insert(name(loader));
  return first_of(all);
}

// Answers the receivers that wait for a split, once every loader has said what it sees, or is not waited for any longer.
void SplitRegistry::settle(Split& split) {
  if (must_wait(split)) return;
  const bool refused = nobody_can(split) && (split.like != 0 || (!split.waiting.empty() && !may_return()));
  if (refused) {
    fail_by(split.left_out.begin()->first, split.left_out.begin()->second.answer, split);
    const std::set<std::string> silent = silences(split);
    if (!silent.empty()) split.problem.error += "; " + first_of(silent);
  }
  if (split.like != 0) return decide(split);
  if (!split.failed) name_left_out(split);
  if (split.waiting.empty()) return;
  const bool none_left = living_.empty() && !lost_.empty() && lost_.size() >= options_.loaders && !may_return();
  if (!split.known && !split.failed && !none_left) return;  // one is still to join, or may come back
  if (split.known && !split.failed && split.opened.local() && !is_placed(split)) return;
  judge(split);
  answer(split);
}

// Every loader has looked again, but for those that are not waited for any longer.
void SplitRegistry::decide(Split& split) {
  Split& before = splits_.at(split.like);  // kept by looked_at
  if (split.known || split.failed) {
    --before.looked_at;
    split.like = 0;
    // Two lists from now on: those that have the older one open keep it.
    for (const PeerId loader : split.same_at) split.asked.erase(loader);
    split.same_at.clear();
    if (!split.failed) prepare_everywhere(split);
    settle(split);
    return;
  }
  before.waiting.merge(split.waiting);
  before.open_at.merge(split.open_at);
  for (auto& [key, look] : looks_) {
    if (look.split == split.fingerprint) look.split = before.fingerprint;
  }
  for (auto& [loader, one] : split.left_out) {
    send_(loader, SplitClosed{split.fingerprint, true});
    // As the last that has the older list it keeps that, and while samples of it are being made.
    if (in_use_(before.fingerprint) || before.opened.same_list.size() < 2) continue;
    if (before.opened.same_list.erase(loader) == 0) continue;
    before.left_out[loader] = std::move(one);
  }
  split.left_out.clear();
  // Where answers are still to come it stays for them, and who opens it meanwhile gets the older one as well.
  if (split.waiting_for.empty()) {
    --before.looked_at;
    splits_.erase(split.fingerprint);
  }
  settle(before);
}

// Whether it can be said where its samples are. Those that no loader has may be at one that is still to join, to
// answer or to come back.
bool SplitRegistry::is_placed(Split& split) {
  if (split.opened.disks.placement(split.opened.prepared.dataset_size, background_) == nullptr) return false;
  const size_t gone = may_return() ? 0 : lost_.size();
  const bool all_said = living_.size() + gone >= options_.loaders && split.waiting_for.empty();
  return all_said || missing(split.opened).count() == 0;
}

// Samples that no living loader has. Lost ones count in the placement, because they may come back.
IndexRanges SplitRegistry::missing(OpenedSplit& opened) {
  const int64_t size = opened.prepared.dataset_size;
  return lost_.empty() ? opened.disks.placement(size, background_)->missing() : opened.disks.missing(size);
}

void SplitRegistry::check_placement(Split& split) {
  OpenedSplit& opened = split.opened;
  const int64_t size = opened.prepared.dataset_size;
  const IndexRanges missing = this->missing(opened);
  if (missing.count() > 0) {
    std::string lacking;
    int named = 0;
    for (const auto& [loader, what] : split.lacking) {
      if (++named > 3) break;
      lacking += "; " + name(loader) + " lacks " + what;
    }
    for (const PeerId loader : lost_) lacking += "; " + name(loader) + " was lost";
    const std::string why = why_not_open(split.fingerprint);
    if (!why.empty()) lacking += "; " + why;
    throw Error(lost_.empty() ? ErrorKind::dataset : ErrorKind::peer_lost,
                "no loader can read " + std::to_string(missing.samples()) + " of the " + std::to_string(size) +
                    " samples of split '" + opened.resolved.name + "', the first being number " +
                    std::to_string(missing.bounds().front()) + lacking,
                "with dataset.local each file has to be on the disks of a node that has a loader");
  }
  if (opened.resolved.on_error == OnError::substitute && opened.resolved.split.mode == Mode::train &&
      !opened.disks.all_have_all(size)) {
    throw Error(
        ErrorKind::config,
        "on_error: substitute draws what stands in for a bad sample from the whole data set, and the loaders of "
        "split '" +
            opened.resolved.name + "' have some of it each (dataset.local)",
        "set on_error: fail, and leave bad samples out of the index or the pack");
  }
}

void SplitRegistry::judge(Split& split) {
  if (split.failed) return;
  OpenedSplit& opened = split.opened;
  try {
    if (!split.known || (opened.local() && living_.empty())) {
      throw Error(
          ErrorKind::peer_lost,
          "no loader is left that could read split '" + opened.resolved.name + "'" +
              (options_.all_lost_ns > 0 ? ", and none joined within " + seconds_text(options_.all_lost_ns) : ""),
          "see the messages of the loaders");
    }
    const int64_t size = opened.prepared.dataset_size;
    check_numbers(opened.resolved, *split.numbers, size);
    if (opened.local()) check_placement(split);
    PlanSpec shape = plan_spec(opened.resolved, size, opened.num_replicas);
    shape.shuffle = false;  // the permutation is not what is looked at here
    (void)Plan(shape, 0);
    if (!opened.plans.ready())
      opened.plans = PlanCache(opened.resolved, split.numbers, size, opened.num_replicas, background_);
  } catch (const Error& error) {
    split.failed = true;
    split.problem.error_kind = error.exit_code();
    split.problem.error = error.message();
    split.problem.remedy = error.remedy();
  }
}

void SplitRegistry::answer(Split& split) {
  const SplitPrepared& seen = split.opened.prepared;
  for (const Opening& opening : split.waiting) {
    const auto& [receiver, number] = opening;
    if (split.failed) {
      send_(receiver, SplitRefused{number, split.problem.error_kind, split.problem.error, split.problem.remedy});
      split.open_at.erase(opening);
    } else {
      send_(receiver, SplitOpened{split.fingerprint, seen.dataset_size, seen.dataset_fingerprint, seen.classes,
                                  seen.extra_fields, seen.labelled, number});
    }
  }
  split.waiting.clear();
}

// One that loaders still look at waits for their answers, which would otherwise be taken for the next one's.
void SplitRegistry::forget_closed() {
  for (auto it = splits_.begin(); it != splits_.end();) {
    const Split& split = it->second;
    if (!split.open_at.empty() || !split.waiting_for.empty() || split.looked_at > 0 || in_use_(it->first)) {
      ++it;
      continue;
    }
    for (const PeerId loader : split.asked) {
      if (living_.count(loader) != 0) send_(loader, SplitClosed{it->first, split.failed});
    }
    it = splits_.erase(it);
  }
}

}  // namespace penstock
