#include "runtime/ranks/joined_rank.h"

#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "runtime/base/clock.h"
#include "runtime/base/error.h"
#include "runtime/base/json_text.h"
#include "runtime/base/signals_blocked.h"
#include "runtime/base/thread_annotations.h"
#include "runtime/embedded/embedded.h"
#include "runtime/job/job.h"
#include "runtime/loader/loader.h"
#include "runtime/ranks/rank_endpoint.h"
#include "runtime/ranks/rank_roles.h"
#include "runtime/receiver/receiver.h"
#include "runtime/report/report.h"
#include "transport/mpi_component.h"
#include "transport/unix_socket.h"
#include "transport/wakeup.h"

namespace penstock {
namespace {

constexpr std::chrono::milliseconds kAskWhileWaitingEvery{50};  // how often while_waiting is called
constexpr std::chrono::milliseconds kLastWords{300};            // trainer 0's goodbye, on its way to the others
constexpr std::chrono::seconds kGoodbyeLimit{3};                // of a rank that goes without leave()

MpiOptions mpi_options(const Job& job, int communicator, std::function<void()> before_finalize) {
  MpiOptions options;
  options.max_message_bytes = job.mpi.max_message_bytes;
  options.start_timeout_s = job.mpi.start_timeout_s;
  options.communicator = communicator;
  options.before_finalize = std::move(before_finalize);
  return options;
}

Job job_of(const std::string& file, const std::vector<std::string>& overrides) {
  Job job = load_job(file, overrides);
  job.balancer.on_loader_loss = LoaderLossPolicy::fail;  // MPI itself would not survive it
  return job;
}

}  // namespace

class JoinedRank::Impl {
 public:
  Impl(int communicator, const std::string& file, const JoinOptions& options)
      : job_file(std::filesystem::absolute(file).string()),
        overrides(options.overrides),
        while_waiting_(options.while_waiting),
        job_(job_of(file, options.overrides)) {
    const SignalsBlocked blocked;  // threads that are made here leave signals to the program's
    session_ = start_mpi(
        mpi_options(job_, communicator, [this] { go_badly("the program called MPI_Finalize without leave()"); }));
    self_ = session_->world().rank;
    bool met_by_all = false;
    try {
      if (session_->world().size < 2) {
        throw Error(ErrorKind::usage, "join: the communicator has one rank, which would train and have no loader",
                    "start more ranks; or leave join() out: a DataLoader alone loads in threads of its own");
      }
      members_ = agree_on_roles(*session_, job_, {kJoinCommand, options.role, ""}, met_by_all);
      trainers_ = static_cast<int>(ranks_with(members_, Role::trainer).size());
      (void)replicas_of(job_, trainers_);
      trainers_communicator = session_->communicator_of(!loads());
      std::unique_ptr<Endpoint> endpoint = make_endpoint(job_, *session_, members_, self_, ring_);
      if (loads()) {
        start_loader(std::move(endpoint));
      } else {
        start_receiver(std::move(endpoint));
      }
    } catch (...) {
      // All ranks meet it, or nobody waits for this one: its program ends.
      (void)session_->finish(met_by_all, kSecond);
      throw;
    }
  }

  ~Impl() { go_badly("the program dropped its Rank without leave()"); }

  // Without leave(): what still can be said is said.
  void go_badly(const char* why) noexcept {
    try {
      if (ended()) return;
      well_ = false;
      why_badly_ = why;
      end_.set();
      if (receiver_thread_.joinable()) {
        (void)wait_for_worker(kGoodbyeLimit, {});
        receiver_->stop();
        receiver_thread_.join();
      }
      end(false);
    } catch (const std::exception&) {  // there is nobody to tell
    }
  }

  bool loads() const noexcept { return me().role == Role::loader; }
  const Member& me() const noexcept { return members_[static_cast<size_t>(self_)]; }
  int trainers() const noexcept { return trainers_; }
  bool here() const noexcept { return ::getpid() == owner_; }

  UniqueFd connect() PENSTOCK_EXCLUDES(mutex_) {
    check_here();
    MutexLock lock(mutex_);
    if (!receiver_ || over_) {
      throw Error(ErrorKind::usage,
                  over_ ? "this rank has left the job" : "this rank loads; only trainers have DataLoaders",
                  over_ ? "make its DataLoaders before leave()" : "call serve() here");
    }
    auto [mine, theirs] = packet_socket_pair();
    receiver_->adopt(std::move(theirs));
    return std::move(mine);
  }

  std::string problem() const PENSTOCK_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return problem_.empty() && over_ ? "this rank has left the job" : problem_;
  }

  void serve() {
    check_here();
    if (!loader_) {
      throw Error(ErrorKind::usage, ended() ? "serve(): the job is over" : "serve(): this rank trains",
                  "only ranks that load serve, once");
    }
    std::thread worker;
    {
      const SignalsBlocked blocked;
      worker = std::thread([this] { work([this] { (void)loader_->run(); }); });
    }
    try {
      (void)wait_for_worker({}, while_waiting_);
    } catch (...) {
      loader_->stop();
      worker.join();
      if (ring_) ring_->hang_up();  // the others go on, and are to take this rank for dead
      end(false);
      throw;
    }
    worker.join();
    const std::string failure = failed_ ? problem() : std::string();
    const int code = failed_ ? static_cast<int>(ErrorKind::peer_lost) : loader_->exit_code();
    if (ring_ && failed_ && !loader_->lost_coordinator()) ring_->hang_up();  // as above
    // One that came too late to be known is let go as if a rank were missing, in a job that ended well.
    end(code == 0 && loader_->all_alive());
    if (code == 0) return;
    throw Error(ErrorKind::peer_lost,
                "loader " + std::to_string(me().number) + ": " +
                    (failure.empty() ? "the job ended badly (exit code " + std::to_string(code) + ")" : failure),
                failure.empty() ? "the trainers' errors say why" : "");
  }

  std::string leave(bool well) {
    check_here();
    if (!receiver_ || ended()) {
      throw Error(ErrorKind::usage, ended() ? "leave(): this rank has left" : "leave(): this rank loads",
                  "trainers leave, once; loaders serve()");
    }
    well_ = well;
    end_.set();
    try {
      (void)wait_for_worker({}, while_waiting_);
    } catch (...) {
      receiver_->stop();
      receiver_thread_.join();
      end(false);
      throw;
    }
    receiver_thread_.join();
    const Goodbye goodbye = failed_ ? Goodbye{false, 1, problem(), false} : receiver_->goodbye();
    std::string report;
    if (goodbye.good && self_ == 0) report = json_text_replacing(merge_reports(receiver_->reports()));
    const bool meet = goodbye.good && goodbye.all_alive;
    const bool met = end(meet);
    if (!goodbye.good && well) {
      throw Error(ErrorKind::peer_lost, goodbye.reason.empty() ? "the job ended badly" : goodbye.reason);
    }
    if (meet && !met) {
      throw Error(ErrorKind::peer_lost,
                  name() + " waited " + std::to_string(end_limit_ns() / kSecond) +
                      " s at the job's end for ranks that did not come",
                  "a rank is stopped, or has ended; all batches had come");
    }
    return report;
  }

  const std::string job_file;
  const std::vector<std::string> overrides;
  int trainers_communicator = 0;

 private:
  void check_here() const {
    if (here()) return;
    throw Error(ErrorKind::usage, "this process is a child, made by fork(), of the rank that joined",
                "only the process that called join() belongs to the job");
  }

  void start_loader(std::unique_ptr<Endpoint> endpoint) {
    LoaderOptions options = loader_options(job_);
    options.gpus.loader_number = me().local_number;
    options.silence_ns = coordinator_silence_ns(job_.balancer);
    loader_ = make_loader(options, std::move(endpoint));
  }

  void start_receiver(std::unique_ptr<Endpoint> endpoint) {
    ReceiverOptions options = receiver_options(job_);
    options.whole_job = true;
    place_receiver_in_world(job_, members_, self_, options);
    receiver_ = make_receiver(options, std::move(endpoint));
    receiver_->watch(end_.fd(), [this] {
      end_.clear();
      receiver_->finish_program(well_, well_ ? "" : name() + ": " + why_badly_, well_ ? 0 : 1);
    });
    receiver_->on_goodbye([this](const Goodbye& goodbye) {  // before clients are hung up on, who ask why
      if (!goodbye.good) say(goodbye.reason);
    });
    receiver_thread_ = std::thread([this] { work([this] { receiver_->run(); }); });
  }

  // The life of the thread that runs the receiver or the loader.
  template <class Run>
  void work(const Run& run) PENSTOCK_EXCLUDES(mutex_) {
    try {
      run();
    } catch (const std::exception& error) {
      failed_ = true;
      say(error.what());
    }
    if (receiver_) receiver_->disconnect_clients();
    MutexLock lock(mutex_);
    worked_ = true;
    changed_.notify_all();
  }

  // False: not within the limit; 0 is none.
  bool wait_for_worker(std::chrono::seconds limit, const std::function<void()>& meanwhile) PENSTOCK_EXCLUDES(mutex_) {
    const MonotonicClock clock;
    const Nanoseconds deadline = clock.now() + std::chrono::nanoseconds(limit).count();
    for (;;) {
      {
        MutexLock lock(mutex_);
        if (!worked_) changed_.wait_for(mutex_, kAskWhileWaitingEvery);
        if (worked_) return true;
      }
      if (limit.count() > 0 && clock.now() > deadline) return false;
      if (meanwhile) meanwhile();
    }
  }

  std::string name() const {
    return "trainer " + std::to_string(me().number) + " (rank " + std::to_string(self_) + ", host " + me().host + ")";
  }

  void say(const std::string& problem) PENSTOCK_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (problem_.empty()) problem_ = problem;
  }

  bool ended() const PENSTOCK_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return over_;
  }

  // For ranks that are on their way to the end.
  Nanoseconds end_limit_ns() const { return static_cast<Nanoseconds>((job_.trainer.grace_s + 15) * 1e9); }

  // Nobody connects from here on. Receiver and loader go when MPI has no message of theirs under way; where that cannot
  // be known they stay until the process ends.
  bool end(bool meet) PENSTOCK_EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      over_ = true;
    }
    if (ring_) ring_->leave();
    if (self_ == 0 && !meet) std::this_thread::sleep_for(kLastWords);
    const bool met = session_->finish(meet, end_limit_ns());
    if (!met) {
      (void)receiver_.release();
      (void)loader_.release();
    }
    receiver_.reset();
    loader_.reset();
    return met;
  }

  const pid_t owner_ = ::getpid();
  const std::function<void()> while_waiting_;
  const Job job_;
  std::unique_ptr<MpiSession> session_;
  int self_ = 0;
  int trainers_ = 0;
  std::vector<Member> members_;
  std::shared_ptr<NodeRing> ring_;
  std::unique_ptr<Loader> loader_;
  std::unique_ptr<Receiver> receiver_;  // made before there is another thread, and gone when over_ is true
  std::thread receiver_thread_;
  Wakeup end_;        // publishes well_ to the receiver's thread
  bool well_ = true;  // written before end_.set(), like why_badly_
  const char* why_badly_ = "the program left badly";
  bool failed_ = false;  // written by the worker, read once that is joined
  mutable Mutex mutex_;
  CondVar changed_;
  bool over_ PENSTOCK_GUARDED_BY(mutex_) = false;
  bool worked_ PENSTOCK_GUARDED_BY(mutex_) = false;  // receiver or loader has run to its end
  std::string problem_ PENSTOCK_GUARDED_BY(mutex_);
};

JoinedRank::JoinedRank(int communicator, const std::string& job_file, const JoinOptions& options)
    : impl_(std::make_unique<Impl>(communicator, job_file, options)) {}
JoinedRank::~JoinedRank() {
  // The child of a fork() has this object and none of its threads.
  if (!impl_->here()) (void)impl_.release();
}

bool JoinedRank::loads() const noexcept {
  return impl_->loads();
}
int JoinedRank::number() const noexcept {
  return impl_->me().number;
}
int JoinedRank::trainers() const noexcept {
  return impl_->trainers();
}
int JoinedRank::local_number() const noexcept {
  return impl_->me().local_number;
}
int JoinedRank::trainers_communicator() const noexcept {
  return impl_->trainers_communicator;
}
const std::string& JoinedRank::job_file() const noexcept {
  return impl_->job_file;
}
const std::vector<std::string>& JoinedRank::overrides() const noexcept {
  return impl_->overrides;
}
UniqueFd JoinedRank::connect() {
  return impl_->connect();
}
std::string JoinedRank::problem() const {
  return impl_->problem();
}
void JoinedRank::serve() {
  impl_->serve();
}
std::string JoinedRank::leave(bool well) {
  return impl_->leave(well);
}

}  // namespace penstock
