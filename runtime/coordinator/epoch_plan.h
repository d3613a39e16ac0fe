// From a split, and the numbers of its sampler's file, to the plan of one epoch: where the samplers of ../sampler meet
// the job.
//
//   SamplerNumbers numbers = read_sampler_file(split);
//   check_weights_of(split, numbers);
//   check_numbers(split, numbers, dataset_size);                         // once, when the split opens
//   auto plan = epoch_plan(split, numbers, dataset_size, num_replicas, epoch);
//
//   auto plan = program_plan(split, order, dataset_size, epoch);         // one iteration whose order the program gave
//   globalize(batch, replica, num_replicas);
//
// Failure: Error(dataset) naming the file, position and value; Error(config) as plan_shape says.
// Thread-safety: pure functions; epoch_plan takes as long as a shuffle or the draws do.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/job/job.h"
#include "runtime/job/sampler_file.h"
#include "sampler/plan.h"

namespace penstock {

// Can anything be drawn by the file's weights? Looks at all of them.
void check_weights_of(const ResolvedSplit& split, const SamplerNumbers& numbers);
// Do the file's numbers fit the dataset? Its indices inside it, one weight for every sample. Takes no time where they do.
void check_numbers(const ResolvedSplit& split, const SamplerNumbers& numbers, int64_t dataset_size);

std::shared_ptr<const Plan> epoch_plan(const ResolvedSplit& split, const SamplerNumbers& numbers, int64_t dataset_size,
                                       int64_t num_replicas, int64_t epoch);

// What an iteration over `samples` samples of one replica looks like, for split.sampler.program.
PlanSpec program_spec(const ResolvedSplit& split, int64_t samples);
// The iteration: a plan of one replica, whose order is that replica's own share.
std::shared_ptr<const Plan> program_plan(const ResolvedSplit& split, std::vector<int64_t> order, int64_t dataset_size,
                                         int64_t epoch);
// Positions of one replica's plan as global ones, numbered as everywhere: row i of step s on replica r of R stands at
// (s * batch_size + i) * R + r.
void globalize(BatchPlan& batch, int64_t replica, int64_t num_replicas);

// How many of a replica's samples may be bad in an epoch.
int64_t bad_sample_budget(const BadSampleSpec& spec, const PlanShape& shape);

}  // namespace penstock
