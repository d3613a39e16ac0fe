// What a split delivers, from its job alone: its pipelines, the fields of a sample and of a batch. Receivers know it
// before any loader has opened the dataset.
//
//   const Variants variants = make_variants(split);
//   FieldTable fields = raw_fields(variants.shared());       // what loaders send; a dataset adds fields of its own
//   fields = delivered_fields(fields, variants.shared(), finish);
//
// Thread-safety: pure functions. Failure: Error(config) naming the split.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "runtime/base/fields.h"
#include "runtime/job/job.h"
#include "runtime/transforms/pipeline.h"
#include "runtime/transforms/variants.h"

namespace penstock {

inline constexpr int64_t kIgnoredLabel = -100;  // torch's ignore_index: padding and unreadable samples in `eval`

// The split's pipelines; their complaints name the split.
Variants make_variants(const ResolvedSplit& split);

// The field table of a split before anything is opened, from the pipeline alone. Receivers use it, and add what loaders
// say that the dataset has besides.
FieldTable raw_fields(const Pipeline& pipeline);
// What a receiver delivers of it: images finished, labels soft where batches are mixed.
FieldTable delivered_fields(FieldTable raw, const Pipeline& pipeline, const FinishSpec& finish);
// Mixes a complete batch of finished images: `labels` are its class numbers, `soft` is where their shares go. Returns
// the complaint about a label that is no class, empty when fine; then nothing is mixed.
std::string mix_batch(const Pipeline& pipeline, const FinishSpec& finish, const Draws& draws, void* images,
                      std::span<const int64_t> labels, float* soft,
                      const std::function<std::string(size_t)>& name_of_sample);
// What stands in a dataset's table after image and label.
std::span<const FieldSpec> extra_fields(const FieldTable& fields);

}  // namespace penstock
