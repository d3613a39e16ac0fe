#include "runtime/embedded/embedded.h"

#include <unistd.h>

#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "runtime/base/json_text.h"
#include "runtime/base/signals_blocked.h"
#include "runtime/base/thread_annotations.h"
#include "runtime/job/json_value.h"
#include "runtime/job/key_table.h"
#include "runtime/loader/loader.h"
#include "runtime/process/launcher.h"
#include "runtime/process/program_place.h"
#include "transport/inproc/inproc.h"
#include "transport/unix_socket.h"

namespace penstock {

ReceiverOptions receiver_options(const Job& job) {
  ReceiverOptions options;
  options.prefetch = job.loader.prefetch;
  options.hold = job.trainer.hold;
  return options;
}

CoordinatorOptions coordinator_options(const Job& job) {
  CoordinatorOptions options;
  options.balancer = job.balancer;
  options.chunk_samples = job.loader.chunk_samples;
  // A little less than a program waits by the job's limit; it would otherwise give up first and could not say for whom.
  options.listing_ns = job.longest_wait_ns() / 10 * 9;
  return options;
}

class EmbeddedWorld::Impl {
 public:
  Impl(const Job& job, const EmbeddedOptions& options) : inproc_(2) {
    const SignalsBlocked blocked;  // the Loader makes its executor's threads already when it is constructed
    ReceiverOptions receiver = receiver_options(job);
    receiver.replica = receiver.trainer = options.replica;
    receiver.num_replicas = options.replicas;
    receiver.coordination = coordinator_options(job);
    receiver.coordination.receivers = {0};
    receiver.coordination.loaders = {1};
    receiver.coordination.nodes = {0, 0};
    receiver.coordination.embedded = true;
    receiver_ = make_receiver(receiver, inproc_.endpoint(0));

    LoaderOptions loader = loader_options(job);
    loader.cpus = options.cpus;
    loader.only_here = true;
    // torchrun's processes share a node: each begins with another GPU.
    loader.gpus.loader_number = program_place(current_environment()).local_rank.value_or(0);
    loader_ = make_loader(loader, inproc_.endpoint(1));

    loader_thread_ = std::thread([this] { guard("loader", [this] { loader_->run(); }); });
    receiver_thread_ = std::thread([this] {
      guard("receiver", [this] { receiver_->run(); });
      receiver_->disconnect_clients();  // after problem() is set, which clients ask for then
    });
  }

  ~Impl() {
    loader_->stop();
    loader_thread_.join();
    receiver_->stop();
    receiver_thread_.join();
    // The receiver's chunk buffers are the loader's memory: the reader goes first.
    receiver_.reset();
    loader_.reset();
  }

  UniqueFd connect() {
    auto [mine, theirs] = packet_socket_pair();
    receiver_->adopt(std::move(theirs));
    return std::move(mine);
  }
  std::string problem() const {
    MutexLock lock(mutex_);
    return problem_;
  }
  std::string loader_report() const { return loader_->report_json(); }

 private:
  template <class Work>
  void guard(const char* who, Work work) {
    try {
      work();
    } catch (const std::exception& error) {
      {
        MutexLock lock(mutex_);
        if (problem_.empty()) problem_ = std::string("the embedded ") + who + " failed: " + error.what();
      }
      // Ends the other side too; the receiver's thread then hangs up on its clients, which ask why.
      receiver_->stop();
      loader_->stop();
    }
  }

  InprocWorld inproc_;
  std::unique_ptr<Receiver> receiver_;
  std::unique_ptr<Loader> loader_;
  std::thread loader_thread_;
  std::thread receiver_thread_;
  mutable Mutex mutex_;
  std::string problem_ PENSTOCK_GUARDED_BY(mutex_);
};

EmbeddedWorld::EmbeddedWorld(const Job& job, const EmbeddedOptions& options)
    : impl_(std::make_unique<Impl>(job, options)), owner_(::getpid()) {}
EmbeddedWorld::~EmbeddedWorld() {
  // After fork() the child has this object but not its threads: joining them would wait for ever.
  if (::getpid() != owner_) (void)impl_.release();
}
void ReceiverHost::let_go_elsewhere(std::shared_ptr<ReceiverHost> host) {
  const SignalsBlocked blocked;
  std::thread([host = std::move(host)]() mutable { host.reset(); }).detach();
}
UniqueFd EmbeddedWorld::connect() {
  return impl_->connect();
}
std::string EmbeddedWorld::problem() const {
  return impl_->problem();
}
std::string EmbeddedWorld::loader_report() const {
  return impl_->loader_report();
}

std::string world_settings(const Job& job, const EmbeddedOptions& options) {
  std::string text = std::to_string(options.replicas) + ' ' + std::to_string(options.replica);
  for (const Section<Job>& section : job_sections()) {
    const bool whole = section.name == "loader" || section.name == "balancer" || section.name == "python";
    for (const Key<Job>& key : section.keys) {
      if (!whole && (section.name != "trainer" || key.info.name != "hold")) continue;
      text += ' ' + section.name + '.' + key.info.name + '=' + json_text(json_value(key.get(job), key.info.kind));
    }
  }
  // Samples of a data set that stays in the program are made while the program waits for them, and a thread of the loader
  // waits as long. Another DataLoader's samples must not wait behind it.
  for (const auto& [name, split] : job.splits) {
    if (split.dataset.is_here()) text += ' ' + split.dataset.pickle;
  }
  return text;
}

std::shared_ptr<EmbeddedWorld> EmbeddedWorld::shared(const Job& job, const EmbeddedOptions& options) {
  // A program's DataLoaders (train, val) share one world and its threads, as they would share loader ranks, where their
  // world_settings() are equal. The process is part of the key: a forked child has a copy of this table, but none of
  // its worlds' threads.
  const std::string key = std::to_string(::getpid()) + ' ' + world_settings(job, options);
  static Mutex mutex;
  static std::map<std::string, std::weak_ptr<EmbeddedWorld>> worlds;
  MutexLock lock(mutex);
  std::erase_if(worlds, [](const auto& one) { return one.second.expired(); });
  std::weak_ptr<EmbeddedWorld>& known = worlds[key];
  auto world = known.lock();
  if (!world || !world->problem().empty()) {
    world = std::make_shared<EmbeddedWorld>(job, options);
    known = world;
  }
  return world;
}

}  // namespace penstock
