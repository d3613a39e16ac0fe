// The state of one split's client: what a checkpoint of the training program keeps, and what resuming checks.
//
//   std::string text = state_text(split, plan, dataset_fingerprint, {epoch, step});   // JSON, a few KB
//   Cursor next = resume_state(text, split_now, plan_now, dataset_fingerprint_now, warning);
//
// The cursor is global: `step` batches of the epoch were taken on every replica. So the text is the same on all
//   replicas (any of them may save it), and serves any number of loaders; for another number of replicas see
//   sampler/position.h, which decides.
// Refused, with Error(config) that names every key that differs: another split, dataset (its list of keys and labels;
//   the folder may move), pipeline, arithmetic, decoders, limit, or order. Machinery (threads, transports, chunk
//   buffers) may change. Another version of a decoder that cannot give other pixels (pipeline_identity.h) is a warning:
//   its text, or nothing.
// The text is untrusted: bounded in size, a fixed set of keys, nothing executed.
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/client/data_loader.h"
#include "runtime/job/job.h"
#include "sampler/plan.h"

namespace penstock {

inline constexpr size_t kMaxStateBytes = size_t{2} << 20;  // a dataset object of the program is in it, pickled

std::string state_text(const ResolvedSplit& split, const PlanSpec& plan, const std::string& dataset_fingerprint,
                       Cursor cursor);
Cursor resume_state(const std::string& text, const ResolvedSplit& split, const PlanSpec& plan,
                    const std::string& dataset_fingerprint, std::string& warning);

}  // namespace penstock
