#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "launch/command.h"
#include "launch/end_channel.h"
#include "launch/launch_line.h"
#include "launch/progress.h"
#include "launch/run_job.h"
#include "launch/trainer.h"
#include "runtime/base/error.h"
#include "runtime/base/json_text.h"
#include "runtime/client/attach.h"
#include "runtime/embedded/embedded.h"
#include "runtime/loader/loader.h"
#include "runtime/process/launcher.h"
#include "runtime/process/placement.h"
#include "runtime/process/signals.h"
#include "runtime/ranks/rank_endpoint.h"
#include "runtime/ranks/rank_roles.h"
#include "transport/mpi_component.h"
#include "transport/node_ring.h"

namespace penstock {
namespace {

// Where mpirun still reaches a node it ends the daemon there within this time, after its first rank failed.
constexpr double kStrandedLimit_s = 5;
// The same while the job starts, when launch gives all ranks the time to say that they have waited in vain.
constexpr double kStrandedAtStart_s = 20;
constexpr int kLastWords_ms = 300;
constexpr Nanoseconds kLeaveAfterFailure = 3 * kSecond;  // behind the grace of all programs
constexpr std::chrono::milliseconds kStay{500};

// Readable when the process that started us has ended: mpirun's daemon may be killed without a word.
UniqueFd watch_parent() {
  return watch_process(::getppid());
}

// As one would type it, for messages.
std::string own_command_line() {
  std::ifstream file("/proc/self/cmdline");
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  return shell_quoted(words);
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

  MpiOptions mpi_options(const Job& job) {
    MpiOptions options;
    options.max_message_bytes = job.mpi.max_message_bytes;
    options.start_timeout_s = job.mpi.start_timeout_s;
    // Where a rank was ended before it listened, the others would wait for it. There is no program yet that needs its grace.
    options.asked_to_end = [this] { return signals_.has(kEndInOrder) || signals_.has(kEndAtOnce); };
    return options;
  }

  // Roles and cores of all ranks, the same on each.
  void take_place() {
    const RankRequest mine{request_.serve ? "penstock serve" : "penstock run", request_.role, own_command_line()};
    members_ = agree_on_roles(*session_, job_, mine, met_by_all_);
    (void)replicas_of(job_, static_cast<int>(ranks_with(members_, Role::trainer).size()));
    std::vector<CoreNeed> needs;
    size_t my_need = 0;
    for (const Member& member : members_) {
      if (member.host != me().host) continue;
      if (member.rank == self_) my_need = needs.size();
      needs.push_back({member.role, job_.loader.threads});
    }
    const bool use_launchers = detect_launcher(current_environment()).kind == LauncherKind::open_mpi;
    cpus_ = share_cores(allowed_cores(use_launchers), needs)[my_need];

    nlohmann::json rank_facts{{"cores", cpu_list_text(cpus_)}, {"pid", ::getpid()}, {"port", 0}};
    if (self_ == 0) rank_facts["port"] = free_tcp_port();
    std::vector<RankProcess> processes;
    for (const std::string& text : session_->all_gather(json_text(rank_facts))) {
      const auto other = parse_json(text);
      processes.push_back({other["pid"], other["cores"]});
      master_port_ = std::max(master_port_, other["port"].get<int>());
    }
    if (self_ != 0 || request_.quiet) return;
    std::fputs(placement_table(members_, processes).c_str(), stderr);
    if (job_.balancer.on_loader_loss == LoaderLossPolicy::go_on && !mpirun_survives_ranks(current_environment())) {
      print_notice(
          "this mpirun ends the job where one loader dies\n  help: `penstock launch --run` starts one that goes on; by "
          "hand, give mpirun --enable-recovery (Open MPI 4) or --with-ft ulfm (5)");
    }
  }

  void load(std::unique_ptr<Endpoint> endpoint) {
    LoaderOptions options = loader_options(job_);
    options.on_notice = print_notice;
    options.cpus = cpus_;
    options.gpus.loader_number = me().local_number;
    options.silence_ns = coordinator_silence_ns(job_.balancer);
    loader_ = make_loader(options, std::move(endpoint));
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
          if (*arrived == SIGTERM) loader_->leave("SIGTERM");
          if (*arrived == kEndInOrder) programs_end_within(job_.trainer.grace_s);
          if (*arrived == kEndAtOnce) programs_end_within(0);
        }
      });
    }
    loader_->run();
    programs_end_within(job_.trainer.grace_s);
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

  ReceiverOptions settings_of_receiver() const {
    ReceiverOptions options = options_for_receiver(request_, job_);
    place_receiver_in_world(job_, members_, self_, options);
    if (self_ == options.coordinator) options.coordination.serving = request_.serve;
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
    const auto trainers = static_cast<int>(ranks_with(members_, Role::trainer).size());
    trainer_ = std::make_unique<Trainer>(
        request_, job_, settings_of_receiver(), std::move(endpoint), helper_,
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
    clean_up();
  }
  void clean_up() {
    trainer_->clean_up(signals_, [this](int number) { trainer_->pass_signal(number); });
    programs_end_by_ = trainer_->programs_end_by();
  }
  // A loader has none of its own, and waits in MPI_Finalize for the trainers that do.
  void programs_end_within(double seconds) {
    const Nanoseconds by = MonotonicClock().now() + static_cast<Nanoseconds>(seconds * 1e9);
    programs_end_by_ = std::min(programs_end_by_.value_or(by), by);
  }

  void fail(const std::exception& problem) {
    // Whoever asked knows why, and every rank was asked.
    if (alike_ && session_->asked_to_end()) {
      code_ = static_cast<int>(ErrorKind::peer_lost);
      why_ = "asked to end while the job was starting";
      all_alive_ = false;
      return;
    }
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
    failed_alone_ = loader_ != nullptr && !loader_->lost_coordinator();
    if (trainer_) clean_up();
    // A loader may be cut off alone. Whether its host is, the host's trainers say: with the daemon they would go too.
    const bool stranded = loader_ ? loader_->lost_coordinator() && me().local_trainers == 0 : lost;
    if (self_ == 0 || !stranded) return;
    if (alike_) {
      stranded_at_start_ = true;  // its word comes first
    } else {
      end_stranded_daemon(parent_.get(), kStrandedLimit_s);
    }
  }

  int leave() {
    trainer_.reset();
    if (ring_ && failed_alone_) ring_->hang_up();
    if (ring_) ring_->leave();
    std::fflush(nullptr);
    // One that was stopped while mpirun was ended reads a goodbye from before.
    if (pollfd gone{parent_.get(), POLLIN, 0}; ::poll(&gone, 1, 0) > 0) all_alive_ = false;
    // With a rank lost MPI_Finalize would wait for the dead for ever. Otherwise the others may still be giving their
    // programs the grace. A job that has failed does not wait longer: a loader may have been stopped a moment ago, and
    // codes do not depend on a good end of MPI.
    auto wait_limit = static_cast<Nanoseconds>((job_.trainer.grace_s + 15) * 1e9);
    if ((code_ != 0 || jobs_code_ != 0) && programs_end_by_) {
      wait_limit = std::max<Nanoseconds>(*programs_end_by_ - MonotonicClock().now(), 0) + kLeaveAfterFailure;
    }
    // Where a process leaves words of others unread, the kernel resets their connections, and the goodbye that they have
    // not read yet is lost with it. MPI's thread reads meanwhile.
    if (self_ == 0 && !all_alive_) std::this_thread::sleep_for(std::chrono::milliseconds(kLastWords_ms));
    if (!session_->finish(all_alive_, wait_limit)) {
      // mpirun takes this for an abort, ends the other ranks, and gives the code of the first one it sees as the job's:
      // so every rank leaves with the same. A job that is complete stays so where not all ranks reach each other any more.
      if (all_alive_ && self_ == 0 && !request_.quiet) {
        print_notice("the job is over, but MPI cannot end in good order: " + session_->why_unfinished());
      }
      if (code_ == 0) code_ = jobs_code_;
      if (request_.end != nullptr) request_.end->ended(code_, why_, false);
      if (stranded_at_start_) end_stranded_daemon(parent_.get(), kStrandedAtStart_s);
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
  bool stranded_at_start_ = false;
  bool failed_alone_ = false;  // a loader, by an error of its own: the others go on, and are to take it for dead
  std::optional<Nanoseconds> programs_end_by_;
  int code_ = 0;
  int jobs_code_ = 0;  // by the goodbye
  std::string why_;    // not 0, for `penstock launch --run`
};

}  // namespace

int run_mpi_rank(const RunRequest& request, const Job& job) {
  block_signal_of_writes(SIGPIPE);
  return RankOfJob(request, job).run();
}

}  // namespace penstock
