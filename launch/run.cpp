#include "launch/run.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "launch/command.h"
#include "launch/progress.h"
#include "runtime/base/error.h"
#include "runtime/base/thread_annotations.h"
#include "runtime/config/job.h"
#include "runtime/loader/loader.h"
#include "runtime/observe/report.h"
#include "runtime/process/environment.h"
#include "runtime/process/helper.h"
#include "runtime/process/launcher.h"
#include "runtime/process/placement.h"
#include "runtime/process/signals.h"
#include "runtime/trainer/attach.h"
#include "runtime/trainer/data_loader.h"
#include "runtime/trainer/embedded.h"
#include "runtime/trainer/port.h"
#include "transport/inproc/inproc.h"
#include "transport/mesh.h"
#include "transport/mpi_component.h"
#include "transport/shm/shm.h"
#include "transport/unix_socket.h"

namespace penstock {
namespace {

// Where mpirun still reaches a node it ends the daemon there within this time, after its first rank failed.
constexpr double kStrandedPatience_s = 5;

std::string port_socket_name(const std::string& job_id, int trainer) {
  return "penstock/" + std::to_string(::geteuid()) + "/" + job_id + "/p" + std::to_string(trainer);
}

// A TCP port that is free now, for MASTER_PORT: torch's store binds it a moment later.
int free_tcp_port() {
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  socklen_t length = sizeof address;
  if (!fd || ::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    return 29500;
  }
  return ntohs(address.sin_port);
}

// Readable when the process that started us has ended: mpirun's daemon may be killed without a word.
UniqueFd watch_parent() {
#ifdef SYS_pidfd_open
  return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, ::getppid(), 0)));
#else
  return {};
#endif
}

// From any thread: one write a line.
void print_notice(const std::string& text) { std::fprintf(stderr, "penstock: %s\n", text.c_str()); }

std::string program_path() {
  char path[4096] = {};
  const ssize_t length = ::readlink("/proc/self/exe", path, sizeof path - 1);
  return length > 0 ? std::string(path, static_cast<size_t>(length)) : "penstock";
}

std::vector<std::string> program_of(const RunRequest& request) {
  if (!request.program.empty()) return request.program;
  std::vector<std::string> argv{program_path(), "drain", request.job_file};
  argv.insert(argv.end(), request.overrides.begin(), request.overrides.end());
  argv.push_back("--epochs=" + std::to_string(request.epochs));
  return argv;
}

// The overrides of a serve command line, for programs that attach from another folder: paths in them are relative to
// this one.
std::string overrides_for_programs(const RunRequest& request) {
  std::vector<std::string> all;
  for (const std::string& text : request.overrides) {
    const size_t equals = text.find('=');
    const std::string key = text.substr(0, equals);
    bool path = false;
    for (const char* end : {".dataset.folder", ".dataset.images", ".dataset.targets", ".dataset.masks",
                            ".sampler.indices", ".sampler.weights"}) {
      path = path || (equals != std::string::npos && key.ends_with(end));
    }
    const char first = path && equals + 1 < text.size() ? text[equals + 1] : '/';
    const bool relative = first == '.' || first == '_' || std::isalnum(static_cast<unsigned char>(first)) != 0;
    all.push_back(relative ? key + "=" + std::filesystem::absolute(text.substr(equals + 1)).string() : text);
  }
  return nlohmann::json(all).dump();
}

// What to do now, for people.
void print_how_to_attach(const RunRequest& request, const std::string& name, int local_trainers) {
  const std::string file = std::filesystem::absolute(request.job_file).lexically_normal().string();
  std::fprintf(stderr,
               "penstock: serving job '%s'\n"
               "  start the trainers, on every node:  PENSTOCK_ATTACH=1 torchrun --nproc-per-node=%d train.py\n"
               "  end it, on any node:                penstock serve --stop %s   (or SIGTERM)\n",
               name.c_str(), local_trainers, file.c_str());
}

// The port of one trainer with its program: what both a rank under mpirun and a job in one process consist of.
class Trainer {
 public:
  Trainer(const RunRequest& request, const Job& job, const PortOptions& options, std::unique_ptr<Endpoint> endpoint,
          Helper& helper, std::string where)
      : request_(request), job_(job), port_(options, std::move(endpoint)), helper_(helper), where_(std::move(where)) {
    port_.watch(helper_.poll_fd(), [this] { read_helper(); });
    port_.on_notice([this](const std::string& text) {
      std::fprintf(stderr, "penstock: %s: %s\n", where_.c_str(), text.c_str());
    });
    const bool speaks_for_the_job = options.self == options.coordinator;
    port_.on_goodbye([this, speaks_for_the_job](const Goodbye& goodbye) {
      // At once: what comes next, telling ranks that are gone and ending the program, takes seconds, and mpirun may end
      // this rank in between.
      if (speaks_for_the_job && !goodbye.good) std::fprintf(stderr, "penstock: %s\n", goodbye.reason.c_str());
      ended_well_ = goodbye.good;
      if (!goodbye.good) helper_.stop(job_.trainer.grace_s);
    });
  }

  Port& port() { return port_; }

  void start(const std::string& socket_name, const std::string& token, TrainerPlace place, std::vector<int> cpus,
             bool keep_stdin, bool relay_output) {
    port_.listen(socket_name, token);
    place.port = "@" + socket_name;
    place.token = token;
    place.job = request_.job_file;
    ProgramSpec program;
    program.argv = program_of(request_);
    program.environment = trainer_environment(inherited_environment(), place);
    // What was said on this command line is said to the program's DataLoader too: it reads the job file itself.
    program.environment.push_back(std::string(kOverridesVariable) + "=" + nlohmann::json(request_.overrides).dump());
    program.cpus = std::move(cpus);
    program.keep_stdin = keep_stdin;
    program.grace_s = job_.trainer.grace_s;
    program.relay_output = relay_output;
    helper_.start(program);
  }

  // Opens the port under the job's name, for a program that somebody else starts.
  void serve(const std::string& name, int local_trainer) {
    const std::string socket = serving_socket(name, local_trainer);
    try {
      port_.listen(socket, "");
    } catch (const Error& error) {
      if (!try_connect_abstract(socket)) throw;
      throw Error(ErrorKind::usage, "job '" + name + "' is being served on host " + host_name() + " already",
                  "end that one (penstock serve --stop " + request_.job_file +
                      "), or give this one another name: in the job file, or name=OTHER");
    }
  }

  void watch_signals(SignalFd& signals) {
    port_.watch(signals.fd(), [this, &signals] {
      while (const auto arrived = signals.next()) {
        pass_signal(arrived->signal);
      }
    });
  }
  // An end that is asked for comes: SIGTERM to the program, the grace, SIGKILL. Asked for again, it comes at once.
  void pass_signal(int number) {
    if (request_.serve) {
      if (number == SIGTERM || number == SIGINT) port_.end_serving("SIG" + std::string(::sigabbrev_np(number)));
      return;
    }
    if (number != SIGTERM && number != SIGINT) {
      helper_.signal(number);
      return;
    }
    helper_.stop(asked_to_end_ ? 0 : job_.trainer.grace_s);
    asked_to_end_ = true;
  }
  void watch_parent_fd(int fd) {
    port_.watch(fd, [this] {
      helper_.stop(job_.trainer.grace_s);
      port_.stop();
      orphaned_ = true;
    });
  }

  // Only after a good end, said by everybody, is there no program left that would need its grace.
  void stop_program() { helper_.stop(ended_well_ ? 0 : job_.trainer.grace_s); }
  // Leaves nothing of the program behind.
  void clean_up() {
    stop_program();
    while (const auto report = helper_.wait_report(job_.trainer.grace_s + 5)) {
      if (report->kind == HelperReport::Kind::ended) break;
    }
  }
  bool orphaned() const noexcept { return orphaned_; }

 private:
  void read_helper() {
    while (const auto report = helper_.next_report()) {
      switch (report->kind) {
        case HelperReport::Kind::started: break;
        case HelperReport::Kind::start_failed:
          port_.finish_program(false, where_ + ": " + report->text, static_cast<int>(ErrorKind::runtime));
          break;
        case HelperReport::Kind::exited: program_exited(report->status); break;
        case HelperReport::Kind::ended:
          port_.finish_program(false, where_ + ": the helper process ended", static_cast<int>(ErrorKind::runtime));
          break;
      }
    }
  }
  void program_exited(int status) {
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
      port_.finish_program(true, "", 0);
      return;
    }
    const std::string how = WIFSIGNALED(status)
                                ? std::string("was killed by ") + sigdescr(WTERMSIG(status))
                                : "exited with status " + std::to_string(WEXITSTATUS(status));
    // Our own drain speaks our exit codes; for a user's program there is one: it failed.
    const bool ours = request_.program.empty() && WIFEXITED(status) && WEXITSTATUS(status) <= 5;
    const int code = ours ? WEXITSTATUS(status) : 1;
    port_.finish_program(false, where_ + ": the program " + how, code);
  }
  static std::string sigdescr(int number) {
    const char* name = ::sigabbrev_np(number);
    return name != nullptr ? std::string("SIG") + name : "signal " + std::to_string(number);
  }

  const RunRequest& request_;
  const Job& job_;
  Port port_;
  Helper& helper_;
  std::string where_;
  bool asked_to_end_ = false;
  bool orphaned_ = false;
  bool ended_well_ = false;
};

int failure_code(int exit_code) { return exit_code != 0 ? exit_code : 1; }

// Prints what rank 0 has to say at the end; returns the exit code.
int conclude(const RunRequest& request, const Port& port) {
  const Goodbye& goodbye = port.goodbye();
  if (!goodbye.good) return failure_code(goodbye.exit_code);  // why was said when it was heard
  const nlohmann::json report = merge_reports(port.reports());
  // The report is what the command is for, so it is stdout's; with --json that is the object.
  if (!request.quiet) std::fputs(report_text(report).c_str(), request.json ? stderr : stdout);
  if (request.json) std::printf("%s\n", report.dump().c_str());
  std::fflush(stdout);
  return 0;
}

// Which replica the trainer belongs to: with roles.ranks_per_replica several consecutive ones get the same data.
void place_port(const Job& job, int trainer, int trainers, PortOptions& options) {
  options.trainer = trainer;
  options.replica = trainer / job.roles.ranks_per_replica;
  options.num_replicas = replicas_of(job, trainers);
  options.counted = trainer % job.roles.ranks_per_replica == 0;
}

PortOptions options_for_port(const RunRequest& request, const Job& job) {
  PortOptions options = port_options(job);
  options.whole_job = true;
  options.dump_folder = request.dump_folder;
  options.dump_raw = request.dump_raw;
  options.serving = request.serve;
  options.idle_ns = static_cast<Nanoseconds>(request.idle_s * 1e9);
  options.host = host_name();
  if (request.serve) options.overrides_json = overrides_for_programs(request);
  return options;
}

// ---- the whole job in this process -------------------------------------------------------------------------------
int run_here(const RunRequest& request, const Job& job) {
  if (job.transport == TransportChoice::shm || job.transport == TransportChoice::mpi) {
    throw Error(ErrorKind::config, "transport: shm and mpi join the ranks of mpirun, and there is only this process",
                "start it with `penstock launch --run`, or set transport: auto");
  }
  const int trainers = job.roles.trainers;
  (void)replicas_of(job, trainers);
  std::vector<Helper> helpers;
  for (int i = 0; i < trainers; ++i) helpers.push_back(Helper::fork_now());
  SignalFd signals({SIGTERM, SIGINT, SIGUSR1, SIGUSR2});

  const auto cores = allowed_cores(false);
  std::vector<CoreNeed> needs(static_cast<size_t>(trainers), CoreNeed{Role::trainer, 1});
  needs.push_back({Role::loader, job.loader.threads});
  const auto shares = share_cores(cores, needs);

  InprocWorld inproc(trainers + 1);
  const std::string job_id = "local" + std::to_string(::getpid());
  std::vector<std::unique_ptr<Trainer>> list;
  const int master_port = free_tcp_port();
  for (int i = 0; i < trainers; ++i) {
    PortOptions options = options_for_port(request, job);
    options.self = i;
    place_port(job, i, trainers, options);
    options.local_replicas = trainers;
    if (i == 0) {
      options.coordination = coordinator_options(job);
      options.coordination.loaders = {trainers};
      for (int p = 0; p < trainers; ++p) options.coordination.ports.push_back(p);
      options.coordination.nodes.assign(static_cast<size_t>(trainers) + 1, 0);
    }
    list.push_back(std::make_unique<Trainer>(request, job, options, inproc.endpoint(i), helpers[static_cast<size_t>(i)],
                                             "trainer " + std::to_string(i)));
    if (request.serve) {
      list.back()->serve(serving_name(job), i);
      continue;
    }
    TrainerPlace place;
    place.rank = place.local_rank = i;
    place.world_size = place.local_world_size = trainers;
    place.master_port = master_port;
    list.back()->start(port_socket_name(job_id, i), job_id, place, shares[static_cast<size_t>(i)], i == 0, false);
  }
  if (request.serve && !request.quiet) print_how_to_attach(request, serving_name(job), trainers);
  // Every program gets its signals from the one thread that reads them.
  int interrupted_by = 0;
  list[0]->port().watch(signals.fd(), [&] {
    while (const auto arrived = signals.next()) {
      if (arrived->signal == SIGINT || arrived->signal == SIGTERM) interrupted_by = arrived->signal;
      for (auto& trainer : list) trainer->pass_signal(arrived->signal);
    }
  });
  ProgressPrinter progress(!request.quiet && !request.quiet_progress, false);
  list[0]->port().every(progress.interval_ns(), [&](const PortFigures& figures) { progress.show(figures, trainers); });

  LoaderOptions loader_settings = loader_options(job);
  loader_settings.on_notice = print_notice;
  loader_settings.cpus = shares.back();
  Loader loader(loader_settings, inproc.endpoint(trainers));
  // The first thing that went wrong in any of the threads ends them all, and is what the job says.
  Mutex mutex;
  std::optional<Error> problem;
  const auto stop_all = [&] {
    loader.stop();
    for (auto& trainer : list) trainer->port().stop();
  };
  const auto guarded = [&](const auto& work) {
    std::optional<Error> failure;
    try {
      work();
    } catch (const Error& error) {
      failure = error;
    } catch (const std::exception& error) {
      failure = Error(ErrorKind::runtime, error.what());
    }
    if (!failure) return;
    {
      MutexLock lock(mutex);
      if (!problem) problem = failure;
    }
    stop_all();
  };
  std::vector<std::thread> threads;
  threads.emplace_back([&] { guarded([&] { loader.run(); }); });
  for (int i = 1; i < trainers; ++i) {
    threads.emplace_back([&, i] { guarded([&] { list[static_cast<size_t>(i)]->port().run(); }); });
  }
  guarded([&] { list[0]->port().run(); });
  progress.done();
  stop_all();
  for (std::thread& thread : threads) thread.join();
  for (auto& trainer : list) trainer->stop_program();  // all at once: they share one grace
  for (auto& trainer : list) trainer->clean_up();
  if (problem) throw *problem;
  const int code = conclude(request, list[0]->port());
  // As `penstock launch --run`, and as shells have it; but to serving a signal is the ordinary end.
  return interrupted_by != 0 && !request.serve ? 128 + interrupted_by : code;
}

// ---- one rank under mpirun ---------------------------------------------------------------------------------------
// Settings that all ranks must read alike, because each acts on its own: a rank that differs would be waited for, or
// would cut messages into other pieces than its peers expect.
nlohmann::json common_settings(const Job& job) {
  return {{"roles.trainers", job.roles.trainers},
          {"roles.ranks_per_replica", job.roles.ranks_per_replica},
          {"transport", static_cast<int>(job.transport)},
          {"mpi.max_message_bytes", job.mpi.max_message_bytes}};
}

// Collective: every rank calls it with the same job.transport.
std::unique_ptr<Endpoint> make_endpoint(const Job& job, MpiSession& session, const std::vector<Member>& members,
                                        int self) {
  const auto size = static_cast<int>(members.size());
  std::vector<PeerId> here;
  std::vector<PeerId> elsewhere;
  for (int rank = 0; rank < size; ++rank) {
    const bool local = members[static_cast<size_t>(rank)].host == members[static_cast<size_t>(self)].host;
    (local ? here : elsewhere).push_back(rank);
  }
  if (job.transport == TransportChoice::inproc) {
    throw Error(ErrorKind::config, "transport: inproc joins threads of one process, and there are " +
                                       std::to_string(size) + " ranks",
                "set transport: auto");
  }
  if (job.transport == TransportChoice::shm && !elsewhere.empty()) {
    throw Error(ErrorKind::config, "transport: shm joins ranks of one node, and the job has several",
                "set transport: auto");
  }
  auto mesh = std::make_unique<Mesh>();
  std::unique_ptr<ShmEndpoint> shm;
  if (job.transport != TransportChoice::mpi && here.size() > 1) {
    ShmOptions options;
    options.job = session.world().job_id;
    options.token = session.world().job_token;
    options.self = self;
    options.node_peers = here;
    shm = std::make_unique<ShmEndpoint>(options);
  }
  // Everybody listens now. A rank that is alone on its node has nobody to connect to, but belongs to the barrier.
  if (job.transport != TransportChoice::mpi) session.barrier();
  if (shm) shm->connect();
  // Everybody has called everybody now: a rank that ends at once, its program having failed, still reaches all others.
  if (job.transport != TransportChoice::mpi) session.barrier();
  if (shm) {
    mesh->add(std::move(shm), here);
  } else {
    elsewhere.insert(elsewhere.end(), here.begin(), here.end());
  }
  if (!elsewhere.empty()) mesh->add(session.endpoint(), elsewhere);
  return mesh;
}

int run_rank(const RunRequest& request, const Job& job) {
  Helper helper = Helper::fork_now();
  SignalFd signals({SIGTERM, SIGINT, SIGUSR1, SIGUSR2});
  const UniqueFd parent = watch_parent();
  MpiOptions mpi;
  mpi.max_message_bytes = job.mpi.max_message_bytes;
  std::unique_ptr<MpiSession> session = start_mpi(mpi);
  const MpiWorldInfo& world = session->world();
  const int self = world.rank;

  int code = 0;
  int jobs_code = 0;  // by the goodbye
  bool all_alive = true;
  std::unique_ptr<Trainer> trainer;
  std::unique_ptr<Loader> loader;  // outlives MPI: a send that is still under way reads its cells
  // Until the endpoints stand, all ranks meet the same mistakes of the job file: one complaint is enough.
  bool alike = true;
  try {
    std::vector<RankInfo> ranks;
    for (const MpiRankInfo& info : world.ranks) ranks.push_back({info.host, info.local_rank, info.node});
    const std::vector<Member> members = assign_roles(ranks, job.roles.trainers);
    const Member& me = members[static_cast<size_t>(self)];
    (void)replicas_of(job, static_cast<int>(std::count_if(
                               members.begin(), members.end(), [](const Member& m) { return m.role == Role::trainer; })));

    std::vector<CoreNeed> needs;
    size_t my_need = 0;
    for (const Member& member : members) {
      if (member.host != me.host) continue;
      if (member.rank == self) my_need = needs.size();
      needs.push_back({member.role, job.loader.threads});
    }
    const bool use_launchers = detect_launcher(current_environment()).kind == LauncherKind::open_mpi;
    const std::vector<int> cpus = share_cores(allowed_cores(use_launchers), needs)[my_need];

    // What ranks tell each other.
    const nlohmann::json common = common_settings(job);
    nlohmann::json card{{"cores", cpu_list_text(cpus)}, {"common", common}, {"port", 0}};
    if (self == 0) card["port"] = free_tcp_port();
    std::vector<std::string> core_texts;
    int master_port = 0;
    for (const std::string& text : session->all_gather(card.dump())) {
      const auto other = nlohmann::json::parse(text);
      core_texts.push_back(other["cores"]);
      master_port = std::max(master_port, other["port"].get<int>());
      for (const auto& [key, value] : common.items()) {
        if (other["common"][key] == value) continue;
        throw Error(ErrorKind::config, "ranks read different job files: " + key + " differs",
                    "make the same job file visible on every node");
      }
    }
    if (self == 0 && !request.quiet) std::fputs(placement_table(members, core_texts).c_str(), stderr);

    std::unique_ptr<Endpoint> endpoint = make_endpoint(job, *session, members, self);
    alike = false;
    std::vector<int> nodes;
    std::vector<std::string> hosts;
    std::vector<PeerId> loaders;
    std::vector<PeerId> ports;
    for (const Member& member : members) {
      const auto known = std::find(hosts.begin(), hosts.end(), member.host);
      nodes.push_back(static_cast<int>(known - hosts.begin()));
      if (known == hosts.end()) hosts.push_back(member.host);
      (member.role == Role::trainer ? ports : loaders).push_back(member.rank);
    }

    const auto silence_ns = static_cast<Nanoseconds>(job.balancer.lost_after_s * 1e9);
    if (me.role == Role::loader) {
      LoaderOptions options = loader_options(job);
      options.on_notice = print_notice;
      options.cpus = cpus;
      options.silence_ns = 2 * silence_ns;
      loader = std::make_unique<Loader>(options, std::move(endpoint));
      if (parent) loader->watch(parent.get());
      loader->run();
      all_alive = loader->all_alive();
      jobs_code = loader->exit_code();
    } else {
      PortOptions options = options_for_port(request, job);
      options.self = self;
      place_port(job, me.number, static_cast<int>(ports.size()), options);
      options.heartbeat_ns = static_cast<Nanoseconds>(job.balancer.heartbeat_s * 1e9);
      options.silence_ns = silence_ns;
      for (const Member& member : members) options.hosts.push_back(member.host);
      options.local_replicas = me.local_trainers;
      options.host = me.host;
      if (self == options.coordinator) {
        options.coordination = coordinator_options(job);
        options.coordination.loaders = loaders;
        options.coordination.ports = ports;
        options.coordination.nodes = nodes;
      }
      const std::string where =
          "trainer " + std::to_string(me.number) + " (rank " + std::to_string(self) + ", host " + me.host + ")";
      trainer = std::make_unique<Trainer>(request, job, options, std::move(endpoint), helper, where);
      trainer->watch_signals(signals);
      if (parent) trainer->watch_parent_fd(parent.get());
      TrainerPlace place;
      place.rank = me.number;
      place.world_size = static_cast<int>(ports.size());
      place.local_rank = me.local_number;
      place.local_world_size = me.local_trainers;
      place.master_addr = master_address(members);
      place.master_port = master_port;
      ProgressPrinter progress(self == 0 && !request.quiet && !request.quiet_progress, true);
      const int trainers = static_cast<int>(ports.size());
      trainer->port().every(progress.interval_ns(),
                            [&, trainers](const PortFigures& figures) { progress.show(figures, trainers); });
      if (request.serve) {
        trainer->serve(serving_name(job), me.local_number);
        if (self == 0 && !request.quiet) print_how_to_attach(request, serving_name(job), me.local_trainers);
      } else {
        trainer->start(port_socket_name(world.job_id, me.number), world.job_token, place, cpus, self == 0, true);
      }
      trainer->port().run();
      progress.done();
      if (trainer->orphaned()) {  // nobody said goodbye, and there is nobody to report to
        all_alive = false;
        code = static_cast<int>(ErrorKind::peer_lost);
      } else {
        all_alive = trainer->port().goodbye().all_alive;
        jobs_code = trainer->port().goodbye().exit_code;
        if (self == 0) code = conclude(request, trainer->port());
      }
      trainer->clean_up();
    }
  } catch (const std::exception& problem) {
    const auto* error = dynamic_cast<const Error*>(&problem);
    code = error != nullptr ? error->exit_code() : static_cast<int>(ErrorKind::runtime);
    if (!alike || code == static_cast<int>(ErrorKind::runtime) || code == static_cast<int>(ErrorKind::peer_lost)) {
      std::fprintf(stderr, "penstock: rank %d: %s\n", self, problem.what());
    } else {
      leave_it_to_rank_0(self);
      std::fprintf(stderr, "penstock: %s\n", problem.what());
    }
    all_alive = false;
    if (trainer) trainer->clean_up();
    if (self != 0 && code == static_cast<int>(ErrorKind::peer_lost)) end_stranded_daemon(parent.get(), kStrandedPatience_s);
  }
  trainer.reset();
  std::fflush(nullptr);
  // With a rank lost MPI_Finalize would wait for the dead for ever. Otherwise the others may still be giving their
  // programs the grace.
  const auto patience = static_cast<Nanoseconds>((job.trainer.grace_s + 15) * 1e9);
  if (!session->finish(all_alive, patience)) {
    // mpirun takes this for an abort, ends the other ranks, and gives the code of the first one it sees as the job's: so
    // every rank leaves with the same.
    if (code == 0) code = all_alive ? static_cast<int>(ErrorKind::peer_lost) : jobs_code;
    ::_exit(code);
  }
  return code;
}

}  // namespace

int run_job(const RunRequest& request) {
  Job job = load_job(request.job_file, request.overrides);
  if (request.serve) {
    (void)serving_name(job);  // a name that cannot be served is found now
    if (job.roles.ranks_per_replica > 1) {
      throw Error(ErrorKind::config, "roles.ranks_per_replica is " + std::to_string(job.roles.ranks_per_replica) +
                                         ", and `penstock serve` feeds every trainer other data",
                  "start the trainers by `penstock run`, or leave the key out");
    }
  }
  const LauncherInfo launcher = detect_launcher(current_environment());
  if (launcher.kind == LauncherKind::none) return run_here(request, job);
  return run_rank(request, job);
}

void add_run(CLI::App& app, Chosen& chosen) {
  auto request = std::make_shared<RunRequest>();
  auto arguments = std::make_shared<JobArguments>();
  CLI::App* command = app.add_subcommand("run", "be one rank of a job (under mpirun), or the whole job");
  add_job_arguments(*command, *arguments);
  command->add_option("--epochs", request->epochs, "without a program: epochs to go through")
      ->check(CLI::PositiveNumber);
  command->add_flag("--json", request->json, "print the report as one JSON object on stdout at the end");
  command->add_flag("--quiet", request->quiet, "no placement, progress or report for people");
  command->add_flag("--no-progress", request->quiet_progress, "no progress lines");
  command->add_option("--dump", request->dump_folder, "write every delivered batch to this folder")->type_name("DIR");
  command->add_flag("--raw", request->dump_raw, "dump the uint8 pixels before finishing");
  command->footer("The program and its arguments stand after --:  mpirun -n 4 penstock run job.yaml -- ./train\n"
                  "Without a program every batch is taken and dropped.");
  command->callback([request, arguments, &chosen] {
    chosen.run = [request, arguments, &chosen] {
      request->job_file = arguments->file;
      request->overrides = arguments->overrides;
      request->program = chosen.program;
      return run_job(*request);
    };
  });
}

}  // namespace penstock
