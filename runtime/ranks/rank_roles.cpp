#include "runtime/ranks/rank_roles.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/base/json_text.h"
#include "runtime/sample/pipeline_identity.h"

namespace penstock {
namespace {

// Settings that all ranks must read alike, because each acts on its own: a rank that differs would be waited for, or
// would cut messages into other pieces than its peers expect.
nlohmann::json common_settings(const Job& job, const std::string& command) {
  return {{"command", command},
          {"roles.trainers", job.roles.trainers},
          {"roles.ranks_per_replica", job.roles.ranks_per_replica},
          {"transport", static_cast<int>(job.transport)},
          {"mpi.max_message_bytes", job.mpi.max_message_bytes}};
}

// What decides the streams. Ranks that disagree would be found out late, or not at all: loaders do as trainers say.
nlohmann::json stream_settings(const Job& job) {
  nlohmann::json splits = nlohmann::json::object();
  for (const auto& [name, split] : job.splits) splits[name] = canonical_json(resolve_split(job, name));
  return splits;
}

// What all ranks find alike.
void check_transport(const Job& job, const std::vector<Member>& members) {
  if (job.transport == TransportChoice::inproc) {
    throw Error(
        ErrorKind::config,
        "transport: inproc joins threads of one process, and there are " + std::to_string(members.size()) + " ranks",
        "set transport: auto");
  }
  if (job.transport == TransportChoice::shm && !on_one_host(members)) {
    throw Error(ErrorKind::config, "transport: shm joins ranks of one node, and the job has several",
                "set transport: auto");
  }
}

class Agreement {
 public:
  Agreement(MpiSession& session, const Job& job, const RankRequest& mine, bool& met_by_all)
      : session_(session), job_(job), mine_(mine), met_by_all_(met_by_all) {}

  // The role of each rank, by what all of them were told; refuses ranks that read another job.
  std::vector<Member> reach() {
    nlohmann::json mine{{"common", common_settings(job_, mine_.command)},
                        {"streams", hash128(json_text(stream_settings(job_))).hex()}};
    if (mine_.role) mine["role"] = static_cast<int>(*mine_.role);
    mine["decoders"] = decoders();
    std::vector<RankInfo> ranks;
    for (const MpiRankInfo& info : session_.world().ranks) ranks.push_back({info.host, info.local_rank, info.node});
    nlohmann::json first;
    bool same_streams = true;
    size_t rank = 0;
    for (const std::string& text : session_.all_gather(json_text(mine))) {
      const auto other = parse_json(text);
      if (rank == 0) first = other;
      if (other.contains("role")) ranks[rank].role = static_cast<Role>(other["role"].get<int>());
      for (const auto& [key, value] : first["common"].items()) {
        if (other["common"][key] != value) refuse_difference(rank, key + " differs");
      }
      if (other["decoders"] != first["decoders"]) refuse_libraries(rank, other["decoders"], first["decoders"]);
      same_streams = same_streams && other["streams"] == first["streams"];
      ++rank;
    }
    if (!same_streams) refuse_other_streams();
    met_by_all_ = true;  // every rank knows the same from here on
    std::vector<Member> members = assign(ranks);
    check_transport(job_, members);
    met_by_all_ = false;
    return members;
  }

 private:
  // A rank that lacks one says so to all.
  std::string decoders() const {
    try {
      return decoders_of(arithmetic_of(job_.arithmetic));
    } catch (const Error& error) {
      return error.message();
    }
  }

  [[noreturn]] void refuse_libraries(size_t rank, const std::string& there, const std::string& here) {
    met_by_all_ = true;
    const std::vector<MpiRankInfo>& ranks = session_.world().ranks;
    throw Error(ErrorKind::config,
                "ranks decode with different libraries, so pixels would depend on who makes them: rank " +
                    std::to_string(rank) + " (host " + ranks[rank].host + ") with " + there + ", rank 0 (host " +
                    ranks[0].host + ") with " + here,
                "install the same versions on every node");
  }

  std::vector<Member> assign(const std::vector<RankInfo>& ranks) {
    if (std::none_of(ranks.begin(), ranks.end(), [](const RankInfo& one) { return one.role.has_value(); })) {
      return assign_roles(ranks, job_.roles.trainers);
    }
    std::vector<Member> members = roles_as_said(ranks);
    if (job_.roles.trainers_given) {
      throw Error(ErrorKind::config,
                  "roles.trainers is " + std::to_string(job_.roles.trainers) + ", and the ranks say their roles by " +
                      (joins() ? "JoinOptions::role (in Python role=)" : "--role"),
                  "leave one of them out: roles.trainers is for nodes that are all alike");
    }
    if (members[0].role != Role::trainer) refuse_order(members);
    return members;
  }

  [[noreturn]] void refuse_difference(size_t rank, const std::string& what) {
    met_by_all_ = true;
    const std::vector<MpiRankInfo>& ranks = session_.world().ranks;
    throw Error(ErrorKind::config,
                "ranks were given different jobs: on rank " + std::to_string(rank) + " (host " + ranks[rank].host +
                    ") and rank 0 (host " + ranks[0].host + ") " + what,
                "make the same job file visible on every node, and give every part of the mpirun line the same command "
                "and overrides");
  }

  // Collective: all ranks have seen that some differ.
  [[noreturn]] void refuse_other_streams() {
    const std::vector<std::string> texts = session_.all_gather(json_text(stream_settings(job_)));
    size_t rank = 0;
    while (texts[rank] == texts[0]) ++rank;
    const auto here = parse_json(texts[rank]);
    const auto there = parse_json(texts[0]);
    for (const auto& [name, text] : here.items()) {
      if (!there.contains(name)) refuse_difference(rank, "the splits differ: '" + name + "' is on the former alone");
      const std::string difference = first_difference(text, there[name]);
      if (!difference.empty()) refuse_difference(rank, "split '" + name + "' differs: " + difference);
    }
    refuse_difference(rank, "the splits differ: the latter has more of them");
  }

  bool joins() const { return mine_.command == kJoinCommand; }

  // Collective, as everybody meets it.
  [[noreturn]] void refuse_order(const std::vector<Member>& members) {
    const std::vector<std::string> commands = session_.all_gather(mine_.command_line);
    const auto part = [&](Role role) {
      const std::vector<PeerId> ranks = ranks_with(members, role);
      return "-n " + std::to_string(ranks.size()) + " --host " + hosts_with(members, role) + " " +
             commands[static_cast<size_t>(ranks.front())];
    };
    throw Error(ErrorKind::usage,
                "rank 0 (host " + members[0].host + ") loads, but the first trainer coordinates and must be rank 0",
                joins() ? std::string("join a communicator in which a trainer comes first (MPI_Comm_split's key)")
                        : "put the trainers first: mpirun " + part(Role::trainer) + " : " + part(Role::loader));
  }

  MpiSession& session_;
  const Job& job_;
  const RankRequest& mine_;
  bool& met_by_all_;
};

}  // namespace

std::vector<Member> agree_on_roles(MpiSession& session, const Job& job, const RankRequest& mine, bool& met_by_all) {
  return Agreement(session, job, mine, met_by_all).reach();
}

std::vector<PeerId> ranks_with(const std::vector<Member>& members, Role role) {
  std::vector<PeerId> ranks;
  for (const Member& member : members) {
    if (member.role == role) ranks.push_back(member.rank);
  }
  return ranks;
}

bool on_one_host(const std::vector<Member>& members) {
  return std::all_of(members.begin(), members.end(),
                     [&](const Member& member) { return member.host == members[0].host; });
}

}  // namespace penstock
