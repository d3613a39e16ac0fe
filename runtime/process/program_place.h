// Where a training program stands among the trainers, as its environment says.
//
//   const ProgramPlace place = program_place(current_environment());
//   if (place.local_rank) …
//
// Thread-safety: a pure function. Failure: Error(usage) for a rank that is no number, naming the variable.
#pragma once

#include <map>
#include <optional>
#include <string>

namespace penstock {

// Where a program stands among the trainers, as far as anything says so.
struct ProgramPlace {
  std::optional<int> rank;
  std::optional<int> world_size;
  std::optional<int> local_rank;
};
// From RANK, WORLD_SIZE and LOCAL_RANK (torchrun, Lightning), otherwise from what srun or mpirun say.
ProgramPlace program_place(const std::map<std::string, std::string>& environment);

}  // namespace penstock
