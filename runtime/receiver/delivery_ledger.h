// What was delivered at a receiver, split by split: hashes, counts, waiting, unusable samples, ranges of steps.
//
//   ledger.delivered("train", {...}, batch_buffer.hash, batch_buffer.records);  // at the moment next() is answered
//   ledger.range_ended("train", range);                           // an iteration ended, or broke off
//   report["splits"] = ledger.to_json(open_ranges);
//
// Sums compose: over iterations, trainers and resumed runs. An unusable sample is counted once, however often it is
//   delivered; padding of an exact evaluation never is, because it repeats a sample that is counted where it stands.
// A report stays small however long the job and however bad the data: counts are exact, and lists have a limit (the first
//   kMostBadSamples unusable samples, the latest kMostRanges ranges). Memory is 8 bytes for each unusable sample of the
//   two epochs that were delivered last. Of an older epoch the first and the last position are kept: if that epoch is
//   delivered again, what lies between them was counted. That is exact where its steps were delivered without a gap.
// Thread-safety: the receiver's event loop alone.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/arithmetic.h"
#include "runtime/base/clock.h"
#include "runtime/base/hash.h"
#include "runtime/base/histogram.h"
#include "runtime/protocol/chunk.h"
#include "sampler/plan.h"

namespace penstock {

struct Delivery {
  Arithmetic arithmetic = Arithmetic::exact;
  Mode mode = Mode::train;
  int64_t epoch = 0;
  int64_t epoch_steps = 0;    // of the iteration's plan
  int64_t epoch_samples = 0;  // that the plan orders: without padding, and with what is dropped at the end
  int64_t images = 0;
  Nanoseconds wait_ns = 0;     // from next() to its answer
  Nanoseconds elapsed_ns = 0;  // since the answer before (or the first next() of the iteration)
};

// Consecutive steps of one iteration, and the hashes of what they held.
struct DeliveredRange {
  int64_t epoch = 0;
  int64_t first_step = 0;
  int64_t end_step = 0;
  StreamHash hash;
};

class DeliveryLedger {
 public:
  static constexpr size_t kMostRanges = 10'000;

  void delivered(const std::string& split, const Delivery& delivery, const StreamHash& hash,
                 const std::vector<SampleRecord>& records);
  void range_ended(const std::string& split, const DeliveredRange& range);

  // `open` holds the iterations that are still going on.
  nlohmann::json to_json(const std::vector<std::pair<std::string, DeliveredRange>>& open) const;

  struct Totals {
    int64_t images = 0;
    int64_t padding = 0;  // of them: repeated by an exact evaluation
    int64_t batches = 0;
    Nanoseconds wait_ns = 0;
    Nanoseconds elapsed_ns = 0;
  };
  Totals totals() const;

  // Positions that are kept one by one, of all splits and epochs.
  size_t kept_positions() const;

 private:
  // Positions of one epoch's unusable samples that were counted.
  struct BadPlaces {
    std::vector<int64_t> positions;  // in order
    // Those from `first` to `last` besides, since the epoch was no longer one of the last two.
    int64_t first = 0;
    int64_t last = -1;

    bool insert(int64_t position);  // false where it is there
    void shorten();
  };
  struct Split {
    bool is_new(int64_t epoch, int64_t position);

    StreamHash hash;
    Arithmetic arithmetic = Arithmetic::exact;
    Mode mode = Mode::train;
    int64_t epoch_steps = 0;
    int64_t epoch_samples = 0;
    Totals totals;
    Histogram step_ns;  // from an answer to the next question: what the program does with a batch
    int64_t substituted = 0;
    nlohmann::json bad = nlohmann::json::array();  // the first ones
    int64_t bad_count = 0;                         // of all
    std::map<int64_t, BadPlaces> bad_places;       // by epoch
    std::array<int64_t, 2> last_epochs{-1, -1};    // with unusable samples, the latest one first
    std::deque<DeliveredRange> ranges;             // the latest ones
    int64_t older_ranges = 0;
  };
  std::map<std::string, Split> splits_;
};

}  // namespace penstock
