#include "runtime/process/placement.h"

#include <hwloc.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <tuple>
#include <utility>

#include "runtime/base/error.h"

namespace penstock {
namespace {

struct TopologyDeleter {
  void operator()(hwloc_topology_t topology) const { hwloc_topology_destroy(topology); }
};
struct BitmapDeleter {
  void operator()(hwloc_bitmap_t bitmap) const { hwloc_bitmap_free(bitmap); }
};
using Topology = std::unique_ptr<hwloc_topology, TopologyDeleter>;
using Bitmap = std::unique_ptr<hwloc_bitmap_s, BitmapDeleter>;

Topology load_topology() {
  hwloc_topology_t topology = nullptr;
  if (hwloc_topology_init(&topology) != 0) throw Error(ErrorKind::runtime, "hwloc cannot make a topology");
  Topology owned(topology);
  if (hwloc_topology_load(topology) != 0) throw Error(ErrorKind::runtime, "hwloc cannot read this machine's topology");
  return owned;
}

std::vector<int> numbers(hwloc_const_bitmap_t set) {
  std::vector<int> found;
  for (int id = hwloc_bitmap_first(set); id >= 0; id = hwloc_bitmap_next(set, id)) found.push_back(id);
  return found;
}

std::string plural(int count, const char* what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

// What a node is called in messages: its host's name, with a number where several have that name.
std::string label(const std::vector<RankInfo>& ranks, const RankInfo& rank) {
  const bool shared = std::any_of(ranks.begin(), ranks.end(), [&](const RankInfo& other) {
    return other.host == rank.host && other.node != rank.node;
  });
  return shared ? rank.host + "#" + std::to_string(rank.node) : rank.host;
}

// The members with these roles, numbered in the order of the ranks; local numbers count by host and role.
std::vector<Member> with_roles(const std::vector<RankInfo>& ranks, const std::vector<Role>& roles) {
  std::vector<Member> members;
  std::map<std::pair<std::string, Role>, int> on_host;
  std::map<Role, int> in_job;
  for (size_t r = 0; r < ranks.size(); ++r) {
    Member member;
    member.rank = static_cast<int>(r);
    member.host = label(ranks, ranks[r]);
    member.host_name = ranks[r].host;
    member.local_rank = ranks[r].local_rank;
    member.role = roles[r];
    member.number = in_job[member.role]++;
    ++on_host[{member.host, member.role}];
    members.push_back(std::move(member));
  }
  for (Member& member : members) {
    member.local_trainers = on_host[{member.host, Role::trainer}];
    member.local_loaders = on_host[{member.host, Role::loader}];
    member.local_number = static_cast<int>(std::count_if(members.begin(), members.end(), [&](const Member& other) {
      return other.host == member.host && other.role == member.role && other.local_rank < member.local_rank;
    }));
  }
  return members;
}

std::map<std::string, int> check_local_ranks(const std::vector<RankInfo>& ranks) {
  if (ranks.empty()) throw Error(ErrorKind::usage, "no ranks to give roles to");
  std::map<std::string, std::vector<int>> hosts;  // host → its local ranks
  for (const RankInfo& rank : ranks) hosts[label(ranks, rank)].push_back(rank.local_rank);
  std::map<std::string, int> counts;
  for (auto& [host, local] : hosts) {
    std::sort(local.begin(), local.end());
    for (size_t i = 0; i < local.size(); ++i) {
      if (local[i] == static_cast<int>(i)) continue;
      throw Error(
          ErrorKind::runtime,
          "the local ranks of host '" + host + "' are not 0 to " + std::to_string(local.size() - 1) + ", each once",
          "report the launcher and its version; mpirun of Open MPI 4 and 5 is known to work");
    }
    counts[host] = static_cast<int>(local.size());
  }
  return counts;
}

}  // namespace

std::vector<Member> assign_roles(const std::vector<RankInfo>& ranks, int trainers_per_node) {
  if (trainers_per_node < 1) {
    throw Error(ErrorKind::config, "roles.trainers is " + std::to_string(trainers_per_node), "it must be 1 or more");
  }
  const std::map<std::string, int> hosts = check_local_ranks(ranks);
  for (const auto& [host, count] : hosts) {
    if (count >= trainers_per_node) continue;
    throw Error(
        ErrorKind::config,
        "host '" + host + "' has " + plural(count, "rank") + ", but roles.trainers asks for " +
            plural(trainers_per_node, "trainer") + " on every node",
        "start at least " + std::to_string(trainers_per_node + 1) +
            " ranks on it (mpirun -n …, --host HOST:SLOTS), lower roles.trainers, or have a node of its own load "
            "(`penstock launch --trainer-host …:N --loader-host …:N`)");
  }
  const int trainers = trainers_per_node * static_cast<int>(hosts.size());
  if (static_cast<int>(ranks.size()) == trainers) {
    throw Error(ErrorKind::config,
                "all " + plural(trainers, "rank") + " would train (roles.trainers: " +
                    std::to_string(trainers_per_node) + " per node) and none would load",
                "start more ranks: mpirun -n " + std::to_string(trainers + static_cast<int>(hosts.size())) +
                    " gives every node one loader");
  }
  if (ranks[0].local_rank != 0) {
    throw Error(ErrorKind::runtime, "rank 0 is not the first rank of its host '" + ranks[0].host + "'",
                "use the launcher's usual order of ranks");
  }
  std::vector<Role> roles;
  for (const RankInfo& rank : ranks)
    roles.push_back(rank.local_rank < trainers_per_node ? Role::trainer : Role::loader);
  return with_roles(ranks, roles);
}

std::vector<Member> roles_as_said(const std::vector<RankInfo>& ranks) {
  (void)check_local_ranks(ranks);
  std::vector<Role> roles;
  for (size_t r = 0; r < ranks.size(); ++r) {
    if (!ranks[r].role) {
      throw Error(ErrorKind::usage,
                  "rank " + std::to_string(r) + " (host " + ranks[r].host + ") has no --role, and other ranks have",
                  "say --role trainer or --role loader in every part of the mpirun line, or in none");
    }
    roles.push_back(*ranks[r].role);
  }
  for (const auto& [role, none, what] :
       {std::tuple(Role::trainer, "trains", "--role trainer"), std::tuple(Role::loader, "loads", "--role loader")}) {
    if (std::count(roles.begin(), roles.end(), role) != 0) continue;
    throw Error(ErrorKind::usage, "none of the " + plural(static_cast<int>(ranks.size()), "rank") + " " + none,
                std::string("give some of them ") + what +
                    ": mpirun -n N … penstock run --role trainer … : -n M … "
                    "penstock run --role loader …");
  }
  return with_roles(ranks, roles);
}

std::string hosts_with(const std::vector<Member>& members, Role role) {
  std::string text;
  std::vector<std::string> told;
  for (const Member& member : members) {
    if (member.role != role || std::count(told.begin(), told.end(), member.host) != 0) continue;
    told.push_back(member.host);
    const int count = role == Role::trainer ? member.local_trainers : member.local_trainers + member.local_loaders;
    text += (text.empty() ? "" : ",") + member.host_name + ":" + std::to_string(count);
  }
  return text;
}

std::string master_address(const std::vector<Member>& members) {
  const bool one_node = std::all_of(members.begin(), members.end(), [&](const Member& member) {
    return member.role == Role::loader || member.host == members[0].host;
  });
  return one_node ? "127.0.0.1" : members[0].host_name;
}

std::vector<Core> allowed_cores(bool use_launchers) {
  const Topology topology = load_topology();
  const Bitmap allowed(hwloc_bitmap_alloc());
  if (hwloc_get_cpubind(topology.get(), allowed.get(), HWLOC_CPUBIND_PROCESS) != 0) {
    hwloc_bitmap_copy(allowed.get(), hwloc_topology_get_allowed_cpuset(topology.get()));
  }
  if (use_launchers) {
    const Bitmap launchers(hwloc_bitmap_alloc());
    if (hwloc_get_proc_cpubind(topology.get(), getppid(), launchers.get(), 0) == 0) {
      hwloc_bitmap_or(allowed.get(), allowed.get(), launchers.get());
    }
  }
  hwloc_bitmap_and(allowed.get(), allowed.get(), hwloc_topology_get_allowed_cpuset(topology.get()));

  std::vector<Core> cores;
  const auto collect = [&](hwloc_obj_type_t type) {
    const int count = hwloc_get_nbobjs_by_type(topology.get(), type);
    for (int i = 0; i < count; ++i) {
      const hwloc_obj_t object = hwloc_get_obj_by_type(topology.get(), type, static_cast<unsigned>(i));
      const Bitmap part(hwloc_bitmap_alloc());
      hwloc_bitmap_and(part.get(), object->cpuset, allowed.get());
      if (!hwloc_bitmap_iszero(part.get())) cores.push_back(numbers(part.get()));
    }
  };
  collect(HWLOC_OBJ_CORE);
  // Some virtual machines and containers describe no cores, only hardware threads.
  if (cores.empty()) collect(HWLOC_OBJ_PU);
  return cores;
}

std::vector<std::vector<int>> share_cores(const std::vector<Core>& cores, const std::vector<CoreNeed>& needs) {
  std::vector<size_t> trainers;
  std::vector<size_t> loaders;
  size_t loader_cores = 0;
  for (size_t i = 0; i < needs.size(); ++i) {
    if (needs[i].role == Role::trainer) {
      trainers.push_back(i);
    } else {
      loaders.push_back(i);
      loader_cores += static_cast<size_t>(std::max(needs[i].threads, 1));
    }
  }
  std::vector<std::vector<int>> shares(needs.size());
  if (cores.size() < loader_cores + trainers.size()) {
    std::vector<int> all;
    for (const Core& core : cores) all.insert(all.end(), core.begin(), core.end());
    std::sort(all.begin(), all.end());
    for (auto& share : shares) share = all;
    return shares;
  }
  size_t next = 0;
  const auto take = [&](size_t member, size_t count) {
    for (; count > 0; --count, ++next) {
      shares[member].insert(shares[member].end(), cores[next].begin(), cores[next].end());
    }
    std::sort(shares[member].begin(), shares[member].end());
  };
  const auto take_loader = [&](size_t member) {
    take(member, static_cast<size_t>(std::max(needs[member].threads, 1)));
  };
  // What the loaders leave is the programs', in equal parts. Trainer t is followed by its part of the loaders.
  const size_t rest = cores.size() - loader_cores;
  size_t dealt = 0;
  for (size_t t = 0; t < trainers.size(); ++t) {
    take(trainers[t], rest * (t + 1) / trainers.size() - rest * t / trainers.size());
    for (; dealt < loaders.size() * (t + 1) / trainers.size(); ++dealt) take_loader(loaders[dealt]);
  }
  for (; dealt < loaders.size(); ++dealt) take_loader(loaders[dealt]);  // a node without trainers
  return shares;
}

std::string cpu_list_text(const std::vector<int>& cpus) {
  std::string text;
  for (size_t i = 0; i < cpus.size();) {
    size_t end = i + 1;
    while (end < cpus.size() && cpus[end] == cpus[end - 1] + 1) ++end;
    text += (text.empty() ? "" : ",") + std::to_string(cpus[i]);
    if (end - i > 1) text += "-" + std::to_string(cpus[end - 1]);
    i = end;
  }
  return text;
}

std::string placement_table(const std::vector<Member>& members, const std::vector<RankProcess>& processes) {
  size_t host_width = 4;
  for (const Member& member : members) host_width = std::max(host_width, member.host.size());
  const auto left = [](std::string text, size_t width) {
    return text.append(width - std::min(width, text.size()), ' ');
  };
  const auto right = [](const std::string& text, size_t width) {
    return std::string(width - std::min(width, text.size()), ' ') + text;
  };
  const auto line = [&](const std::string& host, const std::string& rank, const std::string& pid,
                        const std::string& role, const std::string& cores) {
    return left(host, host_width) + "  " + right(rank, 4) + "  " + right(pid, 7) + "  " + left(role, 11) +
           (cores.empty() ? "" : " ") + cores + "\n";
  };
  std::string table = line("host", "rank", "pid", "role", "cores");
  for (size_t i = 0; i < members.size(); ++i) {
    const Member& member = members[i];
    const RankProcess process = i < processes.size() ? processes[i] : RankProcess{};
    table +=
        line(member.host, std::to_string(member.rank), std::to_string(process.pid),
             (member.role == Role::trainer ? "trainer " : "loader ") + std::to_string(member.number), process.cores);
  }
  return table;
}

}  // namespace penstock
