#include "runtime/ranks/joined_rank.h"

#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

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

MpiOptions mpi_options(const Job& job, int communicator) {
  MpiOptions options;
  options.max_message_bytes = job.mpi.max_message_bytes;
  options.start_timeout_s = job.mpi.start_timeout_s;
  options.communicator = communicator;
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
      : job_file(file), overrides(options.overrides), job_(job_of(file, options.overrides)) {
    const SignalsBlocked blocked;  // threads that are made here leave signals to the program's
    session_ = start_mpi(mpi_options(job_, communicator));
    self_ = session_->world().rank;
    bool met_by_all = false;
    const RankRequest mine{"join", options.role, "PROGRAM"};
    try {
      if (session_->world().size < 2) {
        throw Error(ErrorKind::usage, "join: the communicator has one rank, which would train and have no loader",
                    "start more ranks; or leave join() out: a DataLoader alone loads in threads of its own");
      }
      members_ = agree_on_roles(*session_, job_, mine, met_by_all);
      trainers_ = static_cast<int>(ranks_with(members_, Role::trainer).size());
      (void)replicas_of(job_, trainers_);
      trainers_communicator = session_->communicator_of(!loads());
      std::unique_ptr<Endpoint> endpoint = make_endpoint(job_, *session_, members_, self_, ring_);
      if (loads()) {
        make_loader(std::move(endpoint));
      } else {
        start_receiver(std::move(endpoint));
      }
    } catch (...) {
      // All ranks meet it, or nobody waits for this one: its program ends.
      (void)session_->finish(met_by_all, kSecond);
      throw;
    }
  }

  ~Impl() {
    if (!over_ && receiver_) {
      well_ = false;
      end_.set();
      receiver_->stop();
    }
    if (receiver_thread_.joinable()) receiver_thread_.join();
  }

  bool loads() const noexcept { return me().role == Role::loader; }
  const Member& me() const noexcept { return members_[static_cast<size_t>(self_)]; }
  int trainers() const noexcept { return trainers_; }

  UniqueFd connect() {
    if (!receiver_ || over_) {
      throw Error(ErrorKind::usage,
                  over_ ? "this rank has left the job" : "this rank loads; only trainers have DataLoaders",
                  over_ ? "make its DataLoaders before leave()" : "call serve() here");
    }
    auto [mine, theirs] = packet_socket_pair();
    receiver_->adopt(std::move(theirs));
    return std::move(mine);
  }

  std::string problem() const {
    MutexLock lock(mutex_);
    return problem_;
  }

  void serve() {
    if (!loader_) {
      throw Error(ErrorKind::usage, over_ ? "serve(): the job is over" : "serve(): this rank trains",
                  "only ranks that load serve, once");
    }
    loader_->run();
    const bool all_alive = loader_->all_alive();
    const int code = loader_->exit_code();
    end(all_alive);
    if (code != 0 || !all_alive) {
      throw Error(ErrorKind::peer_lost, "loader " + std::to_string(me().number) + ": the job ended badly",
                  "see what the trainers say");
    }
  }

  std::string leave(bool well) {
    if (!receiver_ || over_) {
      throw Error(ErrorKind::usage, over_ ? "leave(): this rank has left" : "leave(): this rank loads",
                  "trainers leave, once; loaders serve()");
    }
    well_ = well;
    end_.set();
    receiver_thread_.join();
    const Goodbye goodbye = failed_ ? Goodbye{false, 1, problem(), false} : receiver_->goodbye();
    std::string report;
    if (goodbye.good && self_ == 0) report = json_text_replacing(merge_reports(receiver_->reports()));
    end(goodbye.all_alive);
    if (!goodbye.good && well) {
      throw Error(ErrorKind::peer_lost, goodbye.reason.empty() ? "the job ended badly" : goodbye.reason);
    }
    return report;
  }

  const std::string job_file;
  const std::vector<std::string> overrides;
  int trainers_communicator = 0;

 private:
  void make_loader(std::unique_ptr<Endpoint> endpoint) {
    LoaderOptions options = loader_options(job_);
    options.gpus.loader_number = me().local_number;
    options.silence_ns = 2 * silence_limit_ns(job_);
    loader_ = std::make_unique<Loader>(options, std::move(endpoint));
  }

  void start_receiver(std::unique_ptr<Endpoint> endpoint) {
    ReceiverOptions options = receiver_options(job_);
    options.whole_job = true;
    place_receiver_in_world(job_, members_, self_, options);
    receiver_ = std::make_unique<Receiver>(options, std::move(endpoint));
    receiver_->watch(end_.fd(), [this] {
      end_.clear();
      receiver_->finish_program(well_, well_ ? "" : name() + ": the program left badly", well_ ? 0 : 1);
    });
    receiver_thread_ = std::thread([this] {
      try {
        receiver_->run();
        if (!receiver_->goodbye().good) say(receiver_->goodbye().reason);
      } catch (const std::exception& error) {
        failed_ = true;
        say(error.what());
      }
      receiver_->disconnect_clients();  // after problem() is set, which clients ask for then
    });
  }

  std::string name() const {
    return "trainer " + std::to_string(me().number) + " (rank " + std::to_string(self_) + ", host " + me().host + ")";
  }

  void say(const std::string& problem) {
    MutexLock lock(mutex_);
    if (problem_.empty()) problem_ = problem;
  }

  // Receiver and loader stay until MPI has no message of theirs under way.
  void end(bool all_alive) {
    over_ = true;
    if (ring_) ring_->leave();
    (void)session_->finish(all_alive, static_cast<Nanoseconds>((job_.trainer.grace_s + 15) * 1e9));
    receiver_.reset();
    loader_.reset();
  }

  const Job job_;
  std::unique_ptr<MpiSession> session_;
  int self_ = 0;
  int trainers_ = 0;
  std::vector<Member> members_;
  std::shared_ptr<NodeRing> ring_;
  std::unique_ptr<Loader> loader_;
  std::unique_ptr<Receiver> receiver_;
  std::thread receiver_thread_;
  Wakeup end_;           // publishes well_ to the receiver's thread
  bool well_ = true;     // written before end_.set()
  bool failed_ = false;  // written by the receiver's thread, read once that is joined
  bool over_ = false;
  mutable Mutex mutex_;
  std::string problem_ PENSTOCK_GUARDED_BY(mutex_);
};

JoinedRank::JoinedRank(int communicator, const std::string& job_file, const JoinOptions& options)
    : impl_(std::make_unique<Impl>(communicator, job_file, options)) {}
JoinedRank::~JoinedRank() = default;

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
