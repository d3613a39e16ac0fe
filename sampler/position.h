// Where a split stands: a global cursor that is the same on every replica, saved in checkpoints and resumed from.
//
//   Position here = position_at(spec, epoch, step);      // `step` batches of the epoch were taken on every replica
//   std::string text = to_text(here);                    // a dozen short lines
//   Position saved = position_from_text(text);
//   Position next = resume(saved, spec_now, "train");    // may have another number of replicas
//   plan.batch(next.step, replica);                      // the first batch not yet taken
//
// What resume promises: the samples consumed before plus those from here on are exactly the epochs of the uninterrupted
//   run, in the same global order, and later epochs are unchanged too. So it refuses, with an Error(config) that names
//   every key that differs and both values,
//   - another dataset size, mode, seed, shuffle or tail (or drop_last flags, with tail: torch);
//   - another global batch (num_replicas x batch_size; gradient accumulation is the training program's to keep);
//   - another number of replicas where the rest of the epoch would differ: `tail: torch` pads, drops and shortens per
//     replica, so an elastic resume would cross a tail that is not the one the run began with. Where both numbers of
//     replicas deliver the same samples in the same steps (as with both drop_last flags, or a dataset that the global
//     batch divides) there is nothing to cross, and it is allowed.
// What it cannot see: a dataset of the same size with other samples. The pipeline's and dataset's fingerprints do that.
// Text: untrusted input. Fixed keys, one a line, each exactly once; at most kMaxPositionText bytes; counts are checked
//   against each other. Anything else is Error(config) naming the line or key.
// Thread-safety: values and pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "sampler/plan.h"

namespace penstock {

struct Position {
  PlanSpec spec;
  int64_t epoch = 0;
  int64_t step = 0;     // of the next batch; spec's steps where the epoch is done
  int64_t samples = 0;  // positions of the epoch's global order consumed by all replicas, padding included

  friend bool operator==(const Position&, const Position&) = default;
};

constexpr size_t kMaxPositionText = 4096;

// Error(usage) for an epoch or step out of range; a spec that cannot be planned is refused as by plan_shape.
Position position_at(const PlanSpec& spec, int64_t epoch, int64_t step);

bool epoch_done(const Position& position);
// The position itself, or the start of the following epoch where this one is done.
Position roll_over(const Position& position);

std::string to_text(const Position& position);
Position position_from_text(std::string_view text);

// The position of `now` that goes on where `saved` stopped; `split` names it in messages.
Position resume(const Position& saved, const PlanSpec& now, std::string_view split = {});

}  // namespace penstock
