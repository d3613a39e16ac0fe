// What the ranks of an MPI job agree on before anything is loaded: who trains, who loads, that all read one job and
// decode with the same libraries.
//
//   RankRequest mine{.command = "penstock run", .role = request.role, .command_line = "penstock run --role ..."};
//   bool met_by_all = false;
//   std::vector<Member> members = agree_on_roles(session, job, mine, met_by_all);    // the same on every rank
//
// Collective: every rank calls it, before the session's first endpoint.
// Failure: Error(config | usage) by name, for ranks that were told different things, a job without a trainer or a
//   loader, trainers behind loaders. `met_by_all` is true then where every rank meets the same: rank 0 surely complains,
//   and the others need not. Thread-safety: one thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/job/job.h"
#include "runtime/process/placement.h"
#include "transport/mpi_component.h"

namespace penstock {

inline constexpr const char* kJoinCommand = "join";  // of ranks that are programs of their own

struct RankRequest {
  std::string command;  // that must be the same everywhere
  std::optional<Role> role;
  std::string command_line;  // for messages: as one would type it
};

std::vector<Member> agree_on_roles(MpiSession& session, const Job& job, const RankRequest& mine, bool& met_by_all);

std::vector<PeerId> ranks_with(const std::vector<Member>& members, Role role);
bool on_one_host(const std::vector<Member>& members);

}  // namespace penstock
