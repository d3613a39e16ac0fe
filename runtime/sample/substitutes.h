// Which samples are tried in the place of an unusable one, and what is known to be unusable already.
//
//   Substitutes others(split.seed, epoch, planned.index, dataset_size, split.bad_samples);
//   while (const auto other = others.next()) { ... }     // the first usable one is delivered
//
// Candidates are a pure function of (seed, epoch, index, size, bad_samples), the same whoever makes the chunk: first as
//   many draws as there are samples and some, then, because the rest of a long search would draw what was tried, all in
//   their order from the planned one on. Each comes once, the planned one never.
// A search ends, at the latest, where a job whose unusable samples are within bad_samples cannot come to: among so many
//   samples there would be a usable one but for a chance below e^-128 (see substitutes_tried()). In a data set without
//   a usable sample the named error comes after that many tries, at most one of each sample.
// Thread-safety: Substitutes by one thread; UnusableSamples by any.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <unordered_set>
#include <utility>

#include "runtime/base/thread_annotations.h"
#include "runtime/job/job.h"

namespace penstock {

// Candidate number `attempt` for an unusable sample: a draw of a stream of its own.
int64_t substitute_index(uint64_t seed, int64_t epoch, int64_t index, uint32_t attempt, int64_t dataset_size);

// How many candidates a search has at most.
int64_t substitutes_tried(const BadSampleSpec& bad_samples, int64_t dataset_size);

class Substitutes {
 public:
  Substitutes(uint64_t seed, int64_t epoch, int64_t index, int64_t dataset_size, const BadSampleSpec& bad_samples);

  std::optional<int64_t> next();
  int64_t given() const noexcept { return given_; }

 private:
  uint64_t seed_;
  int64_t epoch_;
  int64_t index_;
  int64_t size_;
  int64_t most_;
  int64_t given_ = 0;
  int64_t draws_ = 0;
  int64_t steps_ = 0;  // after the draws
  std::unordered_set<int64_t> seen_;
};

// What searches have found, so that no file is looked at by each of them. It is a memory of statuses, which are pure
// functions of epoch, index and occurrence: what it has forgotten, or never took for want of room, is found again.
class UnusableSamples {
 public:
  static constexpr size_t kMost = size_t{1} << 20;  // some 50 MB, where so many are unusable

  void add(int64_t epoch, uint16_t occurrence, int64_t index);
  bool has(int64_t epoch, uint16_t occurrence, int64_t index) const;

 private:
  mutable Mutex mutex_;
  std::map<std::pair<int64_t, uint16_t>, std::unordered_set<int64_t>> of_ PENSTOCK_GUARDED_BY(mutex_);
  size_t count_ PENSTOCK_GUARDED_BY(mutex_) = 0;
};

}  // namespace penstock
