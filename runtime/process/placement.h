// The role of each process, and its cores.
//
//   std::vector<Member> members = assign_roles(ranks, job.roles.trainers);      // the same on every rank
//   std::vector<Member> members = roles_as_said(ranks);                         // `penstock run --role ...`
//   std::vector<Core> cores = allowed_cores(launched_by_mpirun);                // this node
//   auto shares = share_cores(cores, needs);                                    // one per local member
//   std::puts(placement_table(members, processes).c_str());                     // rank 0
//
// Roles: each rank's own command line says its role, so that nodes may load alone; or none does, and on each node the
//   local ranks below `roles.trainers` train and the others load. Rank 0 is trainer 0, which coordinates; trainers count
//   in the order of world ranks. Everything but allowed_cores() is pure: every rank computes the same.
// Cores: a training program and its loaders get cores of their own where there are enough (a whole core for each
//   loader thread, one at least for each program); otherwise all of them share all of them, because binding too many
//   threads to too few cores is worse than leaving the choice to the kernel.
// Failure: Error(config) for a job that cannot be placed on these ranks, with what to start instead.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace penstock {

enum class Role { trainer, loader };

struct RankInfo {
  std::string host;               // what the node calls itself
  int local_rank = 0;             // 0, 1, … within the node
  int node = 0;                   // tells nodes of one name apart; equal for ranks that share memory
  std::optional<Role> role = {};  // --role of its command line
};

struct Member {
  int rank = 0;           // world rank
  std::string host;       // names the node, in messages too; "a#3" where several call themselves "a"
  std::string host_name;  // what the node calls itself: "a"
  int local_rank = 0;
  Role role = Role::loader;
  int number = 0;          // trainer 0, 1, … or loader 0, 1, … of the job
  int local_number = 0;    // the same within the host
  int local_trainers = 0;  // on this host
  int local_loaders = 0;
};

// By roles.trainers. `ranks[r]` is world rank r.
std::vector<Member> assign_roles(const std::vector<RankInfo>& ranks, int trainers_per_node);
// As the ranks' command lines say; Error(usage) where some do not, nobody trains, or nobody loads. Rank 0 may be a loader
// here, which the caller has to refuse: it knows the command lines, and can write them in the other order.
std::vector<Member> roles_as_said(const std::vector<RankInfo>& ranks);
// "a:8,b:8": the hosts of the members with that role, in the order of their ranks, with the slots that mpirun needs there:
// loaders come second, and what trainers of a host have taken is taken off its slots.
std::string hosts_with(const std::vector<Member>& members, Role role);

// A core and its hardware threads (numbers of the operating system).
using Core = std::vector<int>;

// MASTER_ADDR: where the other trainers' programs find that of trainer 0.
std::string master_address(const std::vector<Member>& members);

// The cores this process may use, in the order of the topology: neighbours share caches. `use_launchers` takes the
// cores of the daemon that started this rank where those are more: Open MPI binds each rank to a core or a socket
// unless told otherwise, and loaders with several threads must not stay on one core.
std::vector<Core> allowed_cores(bool use_launchers);

struct CoreNeed {
  Role role = Role::loader;
  int threads = 1;  // a loader's; ignored for trainers
};

// Hardware threads for each of a node's members, in their order, sorted. A trainer lies beside the loaders dealt to it.
std::vector<std::vector<int>> share_cores(const std::vector<Core>& cores, const std::vector<CoreNeed>& needs);

std::string cpu_list_text(const std::vector<int>& cpus);  // "0-3,8"

struct RankProcess {
  int64_t pid = 0;    // on its host
  std::string cores;  // as cpu_list_text() gives them
};

// One line a rank: host, rank, process, role, cores.
std::string placement_table(const std::vector<Member>& members, const std::vector<RankProcess>& processes);

}  // namespace penstock
