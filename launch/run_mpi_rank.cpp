#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "launch/command.h"
#include "launch/end_channel.h"
#include "launch/launch_line.h"
#include "launch/progress.h"
#include "launch/run_job.h"
#include "launch/trainer.h"
#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/base/json_text.h"
#include "runtime/client/attach.h"
#include "runtime/embedded/embedded.h"
#include "runtime/loader/loader.h"
#include "runtime/process/launcher.h"
#include "runtime/process/placement.h"
#include "transport/mesh.h"
#include "transport/mpi_component.h"
#include "transport/node_ring.h"
#include "transport/shm/shm.h"

namespace penstock {
namespace {

// Where mpirun still reaches a node it ends the daemon there within this time, after its first rank failed.
constexpr double kStrandedLimit_s = 5;
constexpr int kLastWords_ms = 300;
constexpr std::chrono::milliseconds kStay{500};

// Readable when the process that started us has ended: mpirun's daemon may be killed without a word.
UniqueFd watch_parent() {
#ifdef SYS_pidfd_open
  return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, ::getppid(), 0)));
#else
  return {};
#endif
}

// As one would type it, for messages.
std::string own_command_line() {
  std::ifstream file("/proc/self/cmdline");
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  return shell_quoted(words);
}

// Settings that all ranks must read alike, because each acts on its own: a rank that differs would be waited for, or
// would cut messages into other pieces than its peers expect.
nlohmann::json common_settings(const Job& job, bool serve) {
  return {{"command", serve ? "penstock serve" : "penstock run"},
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

// Whether these two have anything to say to each other: all talk to the coordinator, and trainers with loaders.
bool talk(const Member& one, const Member& other) {
  return one.rank == 0 || other.rank == 0 || one.role != other.role;
}

bool on_one_host(const std::vector<Member>& members) {
  return std::all_of(members.begin(), members.end(),
                     [&](const Member& member) { return member.host == members[0].host; });
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

// Collective: every rank calls it with the same job.transport. `ring`: of this node, where it has other ranks.
std::unique_ptr<Endpoint> make_endpoint(const Job& job, MpiSession& session, const std::vector<Member>& members,
                                        int self, std::shared_ptr<NodeRing>& ring) {
  const Member& me = members[static_cast<size_t>(self)];
  std::vector<PeerId> node;  // this one's, itself included
  std::vector<PeerId> here;
  std::vector<PeerId> elsewhere;
  for (const Member& other : members) {
    const bool local = other.host == me.host;
    if (local) node.push_back(other.rank);
    if (other.rank != self && talk(me, other)) (local ? here : elsewhere).push_back(other.rank);
  }
  auto mesh = std::make_unique<Mesh>();
  std::unique_ptr<ShmEndpoint> shm;
  if (job.transport != TransportChoice::mpi && !here.empty()) {
    ShmOptions options;
    options.job = session.world().job_id;
    options.token = session.world().job_token;
    options.self = self;
    options.node_peers = here;
    options.connect_timeout_ns = static_cast<Nanoseconds>(job.mpi.start_timeout_s * 1e9);
    shm = std::make_unique<ShmEndpoint>(options);
  }
  // Sockets of shm tell of deaths too, but only of ranks that talk to each other.
  if (node.size() > 1) {
    ring = std::make_shared<NodeRing>(session.world().job_id, session.world().job_token, self, node);
  }
  // Everybody listens now. A rank that is alone on its node has nobody to connect to, but belongs to the barrier.
  session.barrier();
  if (shm) shm->connect();
  if (ring) ring->connect();
  if (shm) shm->wait_for_calls();  // nobody's calls are left to wait while ranks stand at the barrier
  // Everybody has called everybody now: a rank that ends at once, its program having failed, still reaches all others.
  session.barrier();
  if (ring) mesh->watch_node(ring);
  if (shm) {
    mesh->add(std::move(shm), here);
  } else {
    elsewhere.insert(elsewhere.end(), here.begin(), here.end());
  }
  if (!elsewhere.empty()) mesh->add(session.endpoint(), elsewhere);
  return mesh;
}

// One rank: what it is told, what it becomes, how it leaves.
class RankOfJob {
 public:
  RankOfJob(const RunRequest& request, const Job& job)
      : request_(request),
        job_(job),
        helper_(Helper::fork_now()),
        signals_({SIGTERM, SIGINT, SIGUSR1, SIGUSR2, kEndInOrder, kEndAtOnce}),
        parent_(watch_parent()),
        session_(start_mpi(mpi_options(job))),
        self_(session_->world().rank) {}

  int run() {
    try {
      take_place();
      std::unique_ptr<Endpoint> endpoint = make_endpoint(job_, *session_, members_, self_, ring_);
      alike_ = false;
      if (request_.end != nullptr) request_.end->running(me().role == Role::loader);
      if (me().role == Role::loader) {
        load(std::move(endpoint));
      } else {
        train(std::move(endpoint));
      }
    } catch (const std::exception& problem) {
      fail(problem);
    }
    return leave();
  }

 private:
  const Member& me() const { return members_[static_cast<size_t>(self_)]; }

  static MpiOptions mpi_options(const Job& job) {
    MpiOptions options;
    options.max_message_bytes = job.mpi.max_message_bytes;
    options.start_timeout_s = job.mpi.start_timeout_s;
    return options;
  }

  // The role of each rank, by what all of them were told; refuses ranks that read another job.
  void take_role() {
    nlohmann::json mine{{"common", common_settings(job_, request_.serve)},
                        {"streams", hash128(json_text(stream_settings(job_))).hex()}};
    if (request_.role) mine["role"] = static_cast<int>(*request_.role);
    std::vector<RankInfo> ranks;
    for (const MpiRankInfo& info : session_->world().ranks) ranks.push_back({info.host, info.local_rank, info.node});
    nlohmann::json first;
    bool same_streams = true;
    size_t rank = 0;
    for (const std::string& text : session_->all_gather(json_text(mine))) {
      const auto other = parse_json(text);
      if (rank == 0) first = other;
      if (other.contains("role")) ranks[rank].role = static_cast<Role>(other["role"].get<int>());
      for (const auto& [key, value] : first["common"].items()) {
        if (other["common"][key] != value) refuse_difference(rank, key + " differs");
      }
      same_streams = same_streams && other["streams"] == first["streams"];
      ++rank;
    }
    if (!same_streams) refuse_other_streams();
    met_by_all_ = true;  // every rank knows the same from here on
    assign(ranks);
    check_transport(job_, members_);
    met_by_all_ = false;
  }

  void assign(const std::vector<RankInfo>& ranks) {
    if (std::none_of(ranks.begin(), ranks.end(), [](const RankInfo& one) { return one.role.has_value(); })) {
      members_ = assign_roles(ranks, job_.roles.trainers);
      return;
    }
    members_ = roles_as_said(ranks);
    if (job_.roles.trainers_given) {
      throw Error(
          ErrorKind::config,
          "roles.trainers is " + std::to_string(job_.roles.trainers) + ", and the ranks say their roles by --role",
          "leave one of them out: roles.trainers is for nodes that are all alike");
    }
    if (members_[0].role != Role::trainer) refuse_order();
  }

  [[noreturn]] void refuse_difference(size_t rank, const std::string& what) {
    met_by_all_ = true;
    const std::vector<MpiRankInfo>& ranks = session_->world().ranks;
    throw Error(ErrorKind::config,
                "ranks were given different jobs: on rank " + std::to_string(rank) + " (host " + ranks[rank].host +
                    ") and rank 0 (host " + ranks[0].host + ") " + what,
                "make the same job file visible on every node, and give every part of the mpirun line the same command "
                "and overrides");
  }

  // Collective: all ranks have seen that some differ.
  [[noreturn]] void refuse_other_streams() {
    const std::vector<std::string> texts = session_->all_gather(json_text(stream_settings(job_)));
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

  // Collective, as everybody meets it.
  [[noreturn]] void refuse_order() {
    const std::vector<std::string> commands = session_->all_gather(own_command_line());
    const auto part = [&](Role role) {
      const std::vector<PeerId> ranks = ranks_with(role);
      return "-n " + std::to_string(ranks.size()) + " --host " + hosts_with(members_, role) + " " +
             commands[static_cast<size_t>(ranks.front())];
    };
    throw Error(ErrorKind::usage,
                "rank 0 (host " + members_[0].host + ") loads, but the first trainer coordinates and must be rank 0",
                "put the trainers first: mpirun " + part(Role::trainer) + " : " + part(Role::loader));
  }

  // Roles and cores of all ranks, the same on each.
  void take_place() {
    take_role();
    (void)replicas_of(job_, static_cast<int>(ranks_with(Role::trainer).size()));
    std::vector<CoreNeed> needs;
    size_t my_need = 0;
    for (const Member& member : members_) {
      if (member.host != me().host) continue;
      if (member.rank == self_) my_need = needs.size();
      needs.push_back({member.role, job_.loader.threads});
    }
    const bool use_launchers = detect_launcher(current_environment()).kind == LauncherKind::open_mpi;
    cpus_ = share_cores(allowed_cores(use_launchers), needs)[my_need];

    nlohmann::json rank_facts{{"cores", cpu_list_text(cpus_)}, {"port", 0}};
    if (self_ == 0) rank_facts["port"] = free_tcp_port();
    std::vector<std::string> core_texts;
    for (const std::string& text : session_->all_gather(json_text(rank_facts))) {
      const auto other = parse_json(text);
      core_texts.push_back(other["cores"]);
      master_port_ = std::max(master_port_, other["port"].get<int>());
    }
    if (self_ != 0 || request_.quiet) return;
    std::fputs(placement_table(members_, core_texts).c_str(), stderr);
    if (job_.balancer.on_loader_loss == LoaderLossPolicy::go_on && !mpirun_survives_ranks(current_environment())) {
      print_notice(
          "this mpirun ends the job where one loader dies\n  help: `penstock launch --run` starts one that goes on; by "
          "hand, give mpirun --enable-recovery (Open MPI 4) or --with-ft ulfm (5)");
    }
  }

  Nanoseconds silence_ns() const { return static_cast<Nanoseconds>(job_.balancer.lost_after_s * 1e9); }

  void load(std::unique_ptr<Endpoint> endpoint) {
    LoaderOptions options = loader_options(job_);
    options.on_notice = print_notice;
    options.cpus = cpus_;
    options.gpus.loader_number = me().local_number;
    options.silence_ns = 2 * silence_ns();
    loader_ = std::make_unique<Loader>(options, std::move(endpoint));
    bool orphaned = false;
    if (parent_) {
      loader_->watch(parent_.get(), [&] {
        orphaned = true;
        loader_->stop();
      });
    }
    // A loader alone is asked to go where its node is wanted back. An mpirun that does not survive ranks would end the job.
    if (mpirun_survives_ranks(current_environment())) {
      loader_->watch(signals_.fd(), [this] {
        while (const auto arrived = signals_.next()) {
          if (arrived->signal == SIGTERM) loader_->leave("SIGTERM");
        }
      });
    }
    loader_->run();
    all_alive_ = loader_->all_alive();
    jobs_code_ = loader_->exit_code();
    if (!orphaned) return;
    code_ = static_cast<int>(ErrorKind::peer_lost);
    why_ = "rank " + std::to_string(self_) + " (loader, host " + me().host + ")" + kOrphaned;
    if (request_.end != nullptr) request_.end->ended(code_, why_);
    // Trainer 0 is about to say goodbye, and Open MPI 4 may end a rank that sends to one that is gone. Longer than this it
    // would not let us live either.
    std::this_thread::sleep_for(kStay);
  }

  std::vector<PeerId> ranks_with(Role role) const {
    std::vector<PeerId> ranks;
    for (const Member& member : members_) {
      if (member.role == role) ranks.push_back(member.rank);
    }
    return ranks;
  }

  // A number for each rank, equal for ranks of one node.
  std::vector<int> node_numbers() const {
    std::vector<int> nodes;
    std::vector<std::string> hosts;
    for (const Member& member : members_) {
      const auto known = std::find(hosts.begin(), hosts.end(), member.host);
      nodes.push_back(static_cast<int>(known - hosts.begin()));
      if (known == hosts.end()) hosts.push_back(member.host);
    }
    return nodes;
  }

  ReceiverOptions settings_of_receiver(int trainers) const {
    ReceiverOptions options = options_for_receiver(request_, job_);
    options.self = self_;
    place_receiver(job_, me().number, trainers, options);
    options.heartbeat_ns = static_cast<Nanoseconds>(job_.balancer.heartbeat_s * 1e9);
    options.silence_ns = silence_ns();
    for (const Member& member : members_) options.hosts.push_back(member.host);
    options.local_replicas = me().local_trainers;
    options.host = me().host;
    if (self_ == options.coordinator) {
      options.coordination = coordinator_options(job_);
      options.coordination.loaders = ranks_with(Role::loader);
      options.coordination.receivers = ranks_with(Role::trainer);
      options.coordination.nodes = node_numbers();
      if (!on_one_host(members_)) {
        for (const Member& member : members_) options.coordination.hosts.push_back(member.host);
      }
      options.coordination.serving = request_.serve;
    }
    return options;
  }

  TrainerPlace place_of_program(int trainers) const {
    TrainerPlace place;
    place.rank = me().number;
    place.world_size = trainers;
    place.local_rank = me().local_number;
    place.local_world_size = me().local_trainers;
    place.master_addr = master_address(members_);
    place.master_port = master_port_;
    return place;
  }

  void train(std::unique_ptr<Endpoint> endpoint) {
    const auto trainers = static_cast<int>(ranks_with(Role::trainer).size());
    trainer_ = std::make_unique<Trainer>(
        request_, job_, settings_of_receiver(trainers), std::move(endpoint), helper_,
        "trainer " + std::to_string(me().number) + " (rank " + std::to_string(self_) + ", host " + me().host + ")");
    trainer_->watch_signals(signals_);
    if (parent_) trainer_->watch_parent_fd(parent_.get());
    ProgressPrinter progress(self_ == 0 && !request_.quiet && !request_.quiet_progress, true);
    trainer_->receiver().every(progress.interval_ns(),
                               [&](const ReceiverFigures& figures) { progress.show(figures, trainers); });
    if (request_.serve) {
      trainer_->serve(serving_name(job_), me().local_number);
      if (self_ == 0 && !request_.quiet) print_how_to_attach(request_, serving_name(job_), me().local_trainers);
    } else {
      const MpiWorldInfo& world = session_->world();
      trainer_->start(receiver_socket_name(world.job_id, me().number), world.job_token, place_of_program(trainers),
                      cpus_, self_ == 0, true);
    }
    trainer_->receiver().run();
    progress.done();
    if (!trainer_->orphaned().empty()) {  // there is nobody to report to
      all_alive_ = false;
      code_ = static_cast<int>(ErrorKind::peer_lost);
      why_ = trainer_->orphaned();
    } else {
      all_alive_ = trainer_->receiver().goodbye().all_alive;
      jobs_code_ = trainer_->receiver().goodbye().exit_code;
      why_ = trainer_->receiver().goodbye().reason;
      if (self_ == 0) code_ = conclude(request_, job_, trainer_->receiver());
    }
    trainer_->clean_up();
  }

  void fail(const std::exception& problem) {
    const auto* error = dynamic_cast<const Error*>(&problem);
    code_ = error != nullptr ? error->exit_code() : static_cast<int>(ErrorKind::runtime);
    why_ = problem.what();
    const bool lost = code_ == static_cast<int>(ErrorKind::peer_lost);
    if (!alike_ || lost || code_ == static_cast<int>(ErrorKind::runtime)) {
      std::fprintf(stderr, "penstock: rank %d: %s\n", self_, problem.what());
    } else {
      leave_it_to_rank_0(self_);
      if (self_ == 0 || !met_by_all_) std::fprintf(stderr, "penstock: %s\n", problem.what());
    }
    all_alive_ = false;
    if (trainer_) trainer_->clean_up();
    // A loader may be cut off alone. Whether its host is, the host's trainers say: with the daemon they would go too.
    const bool stranded = loader_ ? loader_->lost_coordinator() && me().local_trainers == 0 : lost;
    if (self_ != 0 && stranded) end_stranded_daemon(parent_.get(), kStrandedLimit_s);
  }

  int leave() {
    trainer_.reset();
    if (ring_) ring_->leave();
    std::fflush(nullptr);
    // With a rank lost MPI_Finalize would wait for the dead for ever. Otherwise the others may still be giving their
    // programs the grace.
    const auto wait_limit = static_cast<Nanoseconds>((job_.trainer.grace_s + 15) * 1e9);
    // Where a process leaves words of others unread, the kernel resets their connections, and the goodbye that they have
    // not read yet is lost with it. MPI's thread reads meanwhile.
    if (self_ == 0 && !all_alive_) std::this_thread::sleep_for(std::chrono::milliseconds(kLastWords_ms));
    if (!session_->finish(all_alive_, wait_limit)) {
      // mpirun takes this for an abort, ends the other ranks, and gives the code of the first one it sees as the job's:
      // so every rank leaves with the same. A job that is complete stays so where not all ranks reach each other any more.
      if (all_alive_ && self_ == 0 && !request_.quiet) {
        print_notice("the job is over, but MPI cannot end in good order: some ranks do not reach each other any more");
      }
      if (code_ == 0) code_ = jobs_code_;
      if (request_.end != nullptr) request_.end->ended(code_, why_, false);
      ::_exit(code_);
    }
    if (request_.end != nullptr) request_.end->ended(code_, why_);
    // The job is done without it: a thread that still waits for a disk is not waited for.
    if (loader_) ::_exit(code_);
    return code_;
  }

  const RunRequest& request_;
  const Job& job_;
  Helper helper_;  // forked first: before MPI, and before any thread
  SignalFd signals_;
  UniqueFd parent_;
  std::unique_ptr<MpiSession> session_;
  std::shared_ptr<NodeRing> ring_;
  int self_ = 0;
  std::vector<Member> members_;  // of all ranks
  std::vector<int> cpus_;        // of this one
  int master_port_ = 0;
  std::unique_ptr<Trainer> trainer_;
  std::unique_ptr<Loader> loader_;  // until MPI has ended: a send that is still under way reads its chunk buffers
  // Until the endpoints stand, all ranks meet the same mistakes of the job file: one complaint is enough.
  bool alike_ = true;
  bool met_by_all_ = false;  // rank 0 surely complains, and the others need not
  bool all_alive_ = true;
  int code_ = 0;
  int jobs_code_ = 0;  // by the goodbye
  std::string why_;    // not 0, for `penstock launch --run`
};

}  // namespace

int run_mpi_rank(const RunRequest& request, const Job& job) {
  return RankOfJob(request, job).run();
}

}  // namespace penstock
