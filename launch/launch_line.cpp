#include "launch/launch_line.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <set>
#include <sstream>

#include "runtime/base/error.h"
#include "runtime/process/session_folder.h"

namespace penstock {
namespace {

using Argv = std::vector<std::string>;

void add(Argv& argv, std::initializer_list<std::string> words) {
  argv.insert(argv.end(), words);
}

// What the ranks find in their environment. Of a line in parts, each part has to say it: on other hosts Open MPI 4 gives a
// part no more than its own.
void add_environment(const LaunchRequest& request, const MpiFound& mpi, const LaunchLine& line, Argv& argv) {
  if (!mpi.library_folder.empty()) {
    const auto before = request.environment.find("LD_LIBRARY_PATH");
    const bool any = before != request.environment.end() && !before->second.empty();
    add(argv, {"-x", "LD_LIBRARY_PATH=" + mpi.library_folder + (any ? ":" + before->second : "")});
  }
  if (!request.session_folder.empty()) {
    add(argv,
        {"--mca", mpi.major >= 5 ? "btl_sm_backing_directory" : "btl_vader_backing_directory", request.session_folder});
    add(argv, {"-x", std::string(kSessionFolderVariable) + "=" + request.session_folder});
  }
  if (line.remote) {
    for (const auto& [name, value] : request.environment) {
      if (name.rfind("PENSTOCK_CFG__", 0) == 0) add(argv, {"-x", name});
    }
  }
}

// "node1.site": mpirun would cut it at the dot. Addresses it leaves alone.
bool has_domain(const std::string& host) {
  return host.find('.') != std::string::npos && host.find_first_not_of("0123456789.") != std::string::npos;
}

bool names_domains(const LaunchRequest& request) {
  const auto slots_with = [](const HostSlots& one) { return has_domain(one.host); };
  const std::vector<HostSlots> alike = parse_hosts(request.hosts);
  return std::any_of(alike.begin(), alike.end(), slots_with) ||
         std::any_of(request.hostfile_hosts.begin(), request.hostfile_hosts.end(), has_domain) ||
         std::any_of(request.trainer_hosts.begin(), request.trainer_hosts.end(), slots_with) ||
         std::any_of(request.loader_hosts.begin(), request.loader_hosts.end(), slots_with);
}

// What every mpirun is told, wherever the ranks are.
void add_common_flags(const LaunchRequest& request, const MpiFound& mpi, const LaunchLine& line, Argv& argv) {
  add(argv, {"--bind-to", "none"});
  if (mpi.major >= 5) {
    add(argv, {"--with-ft", "ulfm"});
  } else {
    add(argv, {"--enable-recovery"});
  }
  if (request.root) add(argv, {"--allow-run-as-root"});
  const std::string runtime_mca = mpi.major >= 5 ? "--prtemca" : "--mca";
  if (names_domains(request)) {
    add(argv, {runtime_mca, mpi.major >= 5 ? "prte_keep_fqdn_hostnames" : "orte_keep_fqdn_hostnames", "1"});
  }
  // odls_base_sigkill_timeout is left alone: Open MPI 4 sleeps that long before SIGTERM as well as before SIGKILL, so a
  // longer one delays the program's SIGTERM. The helper of each rank keeps the grace.
  if (!request.session_folder.empty()) {
    // The first daemon of a node makes the folder (0700), before any rank puts a segment there.
    add(argv, {runtime_mca, mpi.major >= 5 ? "prte_tmpdir_base" : "orte_tmpdir_base", request.session_folder});
  }
  if (!request.agent.empty()) {
    // Open MPI 5 calls this component by another name. It would take its nodes from Slurm, and start daemons by srun.
    const std::string component = mpi.major >= 5 ? "ssh" : "rsh";
    add(argv, {runtime_mca, "plm", component, runtime_mca, "plm_" + component + "_agent", request.agent});
    add(argv, {runtime_mca, "plm_" + component + "_no_tree_spawn", "1", runtime_mca, "ras", "^slurm"});
  }
  if (line.nodes > 1) {
    // Within lost_after_s, so that mpirun still has nothing to say to the lost node when it notices: TCP only probes a
    // connection that has nothing under way.
    const int probe_s = std::max(1, static_cast<int>(request.lost_after_s / 10));
    const int idle_s = std::max(1, static_cast<int>(request.lost_after_s / 2));
    for (const auto& [name, value] :
         {std::pair("oob_tcp_keepalive_time", idle_s), std::pair("oob_tcp_keepalive_intvl", probe_s),
          std::pair("oob_tcp_keepalive_probes", 3)}) {
      if (request.environment.count((mpi.major >= 5 ? "PRTE_MCA_" : "OMPI_MCA_") + std::string(name)) == 0) {
        add(argv, {runtime_mca, name, std::to_string(value)});
      }
    }
  }
}

// What each rank runs; `role` as --role takes it, or empty.
void add_rank_command(const LaunchRequest& request, const std::string& role, Argv& argv) {
  add(argv, {request.penstock, request.command});
  if (!role.empty()) add(argv, {"--role", role});
  argv.push_back(request.job);
  argv.insert(argv.end(), request.options.begin(), request.options.end());
  argv.insert(argv.end(), request.overrides.begin(), request.overrides.end());
  if (!request.program.empty() && role != "loader") {
    argv.push_back("--");
    argv.insert(argv.end(), request.program.begin(), request.program.end());
  }
}

// Open MPI 5 takes the permission to oversubscribe as a part of the mapping, and warns about the old flag beside it.
void add_mapping(const std::string& mapping, bool oversubscribe, const MpiFound& mpi, Argv& argv) {
  if (!mapping.empty()) add(argv, {"--map-by", mapping + (oversubscribe && mpi.major >= 5 ? ":oversubscribe" : "")});
  if (oversubscribe && (mpi.major < 5 || mapping.empty())) argv.push_back("--oversubscribe");
}

// Every host alike: `line` has its ranks and nodes.
void write_alike(const LaunchRequest& request, const MpiFound& mpi, const std::vector<std::string>& hosts,
                 LaunchLine& line) {
  const int per_node = line.ranks / line.nodes;
  Argv& argv = line.argv;
  add(argv, {mpi.mpirun, "-n", std::to_string(line.ranks)});
  line.remote = !request.hostfile.empty() ||
                std::any_of(hosts.begin(), hosts.end(), [](const std::string& host) { return !is_local(host); });
  if (!hosts.empty()) {
    std::string list;
    for (const std::string& host : hosts) {
      list += (list.empty() ? "" : ",") + host + ":" + std::to_string(per_node);
      line.rank_hosts.insert(line.rank_hosts.end(), static_cast<size_t>(per_node), host);
    }
    add(argv, {"--host", list});
  } else if (!request.hostfile.empty()) {
    add(argv, {"--hostfile", request.hostfile});
    for (const std::string& host : request.hostfile_hosts) {
      line.rank_hosts.insert(line.rank_hosts.end(), static_cast<size_t>(per_node), host);
    }
  }
  // Other hosts' cores are not known here, and slots in a hostfile may be fewer than the ranks.
  const bool oversubscribe = line.ranks > request.cores || !request.hostfile.empty();
  if (line.nodes > 1) {
    add_mapping("ppr:" + std::to_string(per_node) + ":node", oversubscribe, mpi, argv);
  } else if (oversubscribe) {
    add_mapping("", true, mpi, argv);
  }
  add_common_flags(request, mpi, line, argv);
  add_environment(request, mpi, line, argv);
  add_rank_command(request, "", argv);
}

LaunchLine line_of_alike(const LaunchRequest& request, const MpiFound& mpi) {
  if (request.ranks != 0 && request.loaders != 0) {
    throw Error(ErrorKind::usage, "-n and --loaders both say how many ranks there are", "give one of them");
  }
  if (!request.hosts.empty() && !request.hostfile.empty()) {
    throw Error(ErrorKind::usage, "--host and --hostfile both say where to run", "give one of them");
  }
  if (request.ranks < 0 || request.loaders < 0) {
    throw Error(ErrorKind::usage, "-n and --loaders count from 1", "mpirun -n is trainers plus loaders");
  }
  // "a:4" names a host and its slots; how many ranks a host gets is ours to say.
  std::vector<std::string> hosts;
  for (const HostSlots& host : parse_hosts(request.hosts)) hosts.push_back(host.host);
  LaunchLine line;
  line.nodes = std::max<int>(
      1, request.hostfile.empty() ? static_cast<int>(hosts.size()) : static_cast<int>(request.hostfile_hosts.size()));
  const int trainers = std::max(request.trainers, 1);
  int loaders = request.loaders;
  if (loaders == 0) loaders = std::max(1, (request.cores - trainers) / std::max(request.loader_threads, 1));
  line.ranks = request.ranks != 0 ? request.ranks : line.nodes * (trainers + loaders);
  if (line.ranks % line.nodes != 0) {
    throw Error(ErrorKind::usage,
                std::to_string(line.ranks) + " ranks do not divide by " + std::to_string(line.nodes) + " hosts",
                "every host gets as many: -n a multiple of the hosts, or --loaders N; or say --trainer-host and "
                "--loader-host");
  }
  if (line.ranks <= line.nodes * trainers) {
    const int least = line.nodes * (trainers + 1);
    throw Error(ErrorKind::usage,
                "-n " + std::to_string(line.ranks) + " leaves no loader: roles.trainers is " +
                    std::to_string(trainers) + " on each of " + std::to_string(line.nodes) +
                    (line.nodes == 1 ? " host" : " hosts"),
                "-n " + std::to_string(least) + " or more, or --loaders N for N loaders on every host");
  }
  write_alike(request, mpi, hosts, line);
  return line;
}

// Trainers and loaders on hosts of their own, or on the same ones, in numbers that each host says: two parts of one
// mpirun line (MPMD), the trainers' first, since rank 0 coordinates.
LaunchLine line_of_roles(const LaunchRequest& request, const MpiFound& mpi) {
  if (request.trainer_hosts.empty() || request.loader_hosts.empty()) {
    const bool trainers = request.loader_hosts.empty();
    throw Error(ErrorKind::usage,
                std::string("only the hosts of ") + (trainers ? "trainers" : "loaders") + " are named",
                trainers ? "--loader-host HOST:N says where N ranks load; it may be the same host"
                         : "--trainer-host HOST:N says where N ranks train; it may be the same host");
  }
  if (request.ranks != 0 || !request.hosts.empty() || !request.hostfile.empty()) {
    throw Error(ErrorKind::usage,
                "--trainer-host and --loader-host say how many ranks run where, and so does " +
                    std::string(request.ranks != 0       ? "-n"
                                : !request.hosts.empty() ? "--host"
                                                         : "--hostfile"),
                "leave that out");
  }
  if (request.trainers_given) {
    throw Error(ErrorKind::config,
                "roles.trainers is " + std::to_string(request.trainers) + ", and " + request.trainers_option +
                    " says how many train where",
                "leave roles.trainers out of the job: it is for nodes that are all alike");
  }
  std::vector<HostSlots> loaders = request.loader_hosts;
  const bool all_say =
      std::all_of(loaders.begin(), loaders.end(), [](const HostSlots& host) { return host.slots > 0; });
  if (request.loaders != 0 && all_say) {
    throw Error(ErrorKind::usage,
                "--loaders " + std::to_string(request.loaders) + " has no effect: " + hosts_text(loaders) +
                    " says how many load on every host",
                "leave --loaders out, or the numbers of those hosts that are to have as many");
  }
  for (HostSlots& host : loaders) {
    if (host.slots == 0) host.slots = request.loaders;
    if (host.slots > 0) continue;
    throw Error(ErrorKind::usage, "nothing says how many ranks load on host '" + host.host + "'",
                "--loader-host " + host.host + ":N, slots=N in the file, or --loaders N for all that say nothing");
  }
  std::set<std::string> names;
  for (const HostSlots& host : request.trainer_hosts) {
    names.insert(host.host);
    if (host.slots > 0) continue;
    throw Error(ErrorKind::usage, "nothing says how many ranks train on host '" + host.host + "'",
                "--trainer-host " + host.host + ":N, or slots=N in the file: as many as it has GPUs, usually");
  }
  for (const HostSlots& host : loaders) names.insert(host.host);
  LaunchLine line;
  line.nodes = static_cast<int>(names.size());
  line.ranks = total_slots(request.trainer_hosts) + total_slots(loaders);
  line.remote = std::any_of(names.begin(), names.end(), [](const std::string& host) { return !is_local(host); });
  Argv& argv = line.argv;
  argv.push_back(mpi.mpirun);
  // mpirun has one number of slots for a host, so one in both parts would get the ranks of other hosts, too. Mapped in
  // sequence, each rank has an entry of the list.
  const bool in_sequence = names.size() < request.trainer_hosts.size() + loaders.size();
  add_mapping(in_sequence ? "seq" : "slot", true, mpi, argv);
  add_common_flags(request, mpi, line, argv);
  const auto add_part = [&](const std::vector<HostSlots>& hosts, const char* role) {
    add_environment(request, mpi, line, argv);
    for (const HostSlots& host : hosts) {
      line.rank_hosts.insert(line.rank_hosts.end(), static_cast<size_t>(host.slots), host.host);
    }
    std::string list = hosts_text(hosts);
    if (in_sequence) {
      list.clear();
      for (const HostSlots& host : hosts) {
        for (int i = 0; i < host.slots; ++i) list += (list.empty() ? "" : ",") + host.host;
      }
    }
    add(argv, {"-n", std::to_string(total_slots(hosts)), "--host", list});
    add_rank_command(request, role, argv);
  };
  add_part(request.trainer_hosts, "trainer");
  argv.push_back(":");
  line.second_part = argv.size();
  add_part(loaders, "loader");
  return line;
}

// Open MPI takes a list of them, "ssh -q : rsh", and the first that there is.
std::vector<std::string> agent_of(const LaunchRequest& request, const MpiFound& mpi) {
  const auto set = request.environment.find(mpi.major >= 5 ? "PRTE_MCA_plm_ssh_agent" : "OMPI_MCA_plm_rsh_agent");
  std::istringstream text(set == request.environment.end() ? "ssh" : set->second);
  std::vector<std::string> words;
  for (std::string word; text >> word && word != ":";) words.push_back(word);
  return words.empty() ? std::vector<std::string>{"ssh"} : words;
}

}  // namespace

LaunchLine launch_line(const LaunchRequest& request, const MpiFound& mpi) {
  const bool by_role = !request.trainer_hosts.empty() || !request.loader_hosts.empty();
  LaunchLine line = by_role ? line_of_roles(request, mpi) : line_of_alike(request, mpi);
  line.penstock = request.penstock;
  if (request.agent.empty()) line.agent = agent_of(request, mpi);
  line.session_folder = request.session_folder;
  line.grace_s = std::max(request.grace_s, 0.0);
  line.lost_after_s = request.lost_after_s;
  line.start_timeout_s = request.start_timeout_s;
  return line;
}

std::string shell_quoted(const std::vector<std::string>& argv) {
  std::string line;
  for (const std::string& word : argv) {
    if (!line.empty()) line += ' ';
    const bool plain = !word.empty() && std::all_of(word.begin(), word.end(), [](unsigned char c) {
      return std::isalnum(c) != 0 || (c != 0 && std::strchr("@%+=:,./-_", c) != nullptr);
    });
    if (plain) {
      line += word;
      continue;
    }
    line += '\'';
    for (const char c : word) line += c == '\'' ? std::string("'\\''") : std::string(1, c);
    line += '\'';
  }
  return line;
}

}  // namespace penstock
