// Where a process stands among the trainers when it loads for itself.
//
//   EmbeddedOptions place = embedded_place(job, options, current_environment());
//   auto world = EmbeddedWorld::shared(job, place);
//
// The first that says anything: the program's arguments (num_replicas, rank), then RANK and WORLD_SIZE; otherwise it is
//   alone. It is never guessed: where a launcher with several tasks is seen, or WORLD_SIZE without RANK, and nothing
//   tells the ranks apart, every one of them would train on the same data, so that is refused.
// What counts ranks (RANK, and the arguments where `places_are_ranks`) counts roles.ranks_per_replica of them as one
//   replica.
// Thread-safety: a pure function. Ownership: none. Failure: Error(usage) that says what to set.
#pragma once

#include <map>
#include <string>

#include "runtime/client/data_loader.h"
#include "runtime/embedded/embedded.h"
#include "runtime/job/job.h"

namespace penstock {

EmbeddedOptions embedded_place(const Job& job, const DataLoaderOptions& options,
                               const std::map<std::string, std::string>& environment);

}  // namespace penstock
