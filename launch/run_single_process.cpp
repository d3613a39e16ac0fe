#include <algorithm>
#include <optional>
#include <thread>

#include "launch/progress.h"
#include "launch/run_job.h"
#include "launch/trainer.h"
#include "runtime/base/error.h"
#include "runtime/base/random_hex.h"
#include "runtime/base/thread_annotations.h"
#include "runtime/client/attach.h"
#include "runtime/embedded/embedded.h"
#include "runtime/loader/loader.h"
#include "runtime/process/descriptor_limit.h"
#include "runtime/process/placement.h"
#include "runtime/ranks/rank_endpoint.h"
#include "transport/inproc/inproc.h"

namespace penstock {

int run_single_process(const RunRequest& request, const Job& job) {
  if (job.transport == TransportChoice::shm || job.transport == TransportChoice::mpi) {
    throw Error(ErrorKind::config, "transport: shm and mpi join the ranks of mpirun, and there is only this process",
                "start it with `penstock launch --run`, or set transport: auto");
  }
  const int trainers = job.roles.trainers;
  // Each has a receiver, a helper and a program: hundreds are a slip of the pen, and would only run out of memory.
  if (trainers > kMostTrainersHere) {
    throw Error(ErrorKind::config,
                "roles.trainers is " + std::to_string(trainers) + ", and one process feeds " +
                    std::to_string(kMostTrainersHere) + " at most",
                "it counts the trainers of one node; start the job on its nodes with `penstock launch`");
  }
  (void)replicas_of(job, trainers);
  allow_descriptors(descriptors_of_one_process(trainers), "this job, in one process,");
  std::vector<Helper> helpers;
  for (int i = 0; i < trainers; ++i) helpers.push_back(Helper::fork_now());
  SignalFd signals({SIGTERM, SIGINT, SIGUSR1, SIGUSR2});

  const auto cores = allowed_cores(false);
  std::vector<CoreNeed> needs(static_cast<size_t>(trainers), CoreNeed{Role::trainer, 1});
  needs.push_back({Role::loader, job.loader.threads});
  const auto shares = share_cores(cores, needs);

  InprocWorld inproc(trainers + 1);
  // Not the process's number alone: containers that share a network have equal ones.
  const std::string job_id = "local" + random_hex(8);
  const std::string token = random_hex(32);
  std::vector<std::unique_ptr<Trainer>> list;
  const int master_port = free_tcp_port();
  for (int i = 0; i < trainers; ++i) {
    ReceiverOptions options = options_for_receiver(request, job);
    options.self = i;
    place_receiver(job, i, trainers, options);
    options.local_replicas = trainers;
    if (i == 0) {
      options.coordination = coordinator_options(job);
      options.coordination.loaders = {trainers};
      for (int p = 0; p < trainers; ++p) options.coordination.receivers.push_back(p);
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
    list.back()->start(receiver_socket_name(job_id, i), token, place, shares[static_cast<size_t>(i)], i == 0, false);
  }
  if (request.serve && !request.quiet) print_how_to_attach(request, serving_name(job), trainers);
  // One thread reads the signals of all programs. Once the threads are joined it also passes them on.
  int interrupted_by = 0;
  const auto pass = [&](int number, void (Trainer::*how)(int)) {
    if (number == SIGINT || number == SIGTERM) interrupted_by = number;
    for (auto& trainer : list) (*trainer.*how)(number);
  };
  list[0]->receiver().watch(signals.fd(), [&] {
    while (const auto arrived = signals.next()) pass(*arrived, &Trainer::hand_over_signal);
  });
  ProgressPrinter progress(!request.quiet && !request.quiet_progress, false);
  list[0]->receiver().every(progress.interval_ns(),
                            [&](const ReceiverFigures& figures) { progress.show(figures, trainers); });

  LoaderOptions loader_settings = loader_options(job);
  loader_settings.on_notice = print_notice;
  loader_settings.cpus = shares.back();
  const std::unique_ptr<Loader> loader = make_loader(loader_settings, inproc.endpoint(trainers));
  // The first thing that went wrong in any of the threads ends them all, and is what the job says.
  Mutex mutex;
  std::optional<Error> problem;
  const auto stop_all = [&] {
    loader->stop();
    for (auto& trainer : list) trainer->receiver().stop();
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
  threads.emplace_back([&] { guarded([&] { loader->run(); }); });
  for (int i = 1; i < trainers; ++i) {
    threads.emplace_back([&, i] { guarded([&] { list[static_cast<size_t>(i)]->receiver().run(); }); });
  }
  guarded([&] { list[0]->receiver().run(); });
  progress.done();
  stop_all();
  for (std::thread& thread : threads) thread.join();
  for (auto& trainer : list) trainer->stop_program();  // all at once: they share one grace
  for (auto& trainer : list) {
    trainer->clean_up(signals, [&](int number) { pass(number, &Trainer::pass_signal); });
  }
  if (problem) throw *problem;
  const int code = conclude(request, job, list[0]->receiver());
  // As `penstock launch --run`, and as shells have it; but to serving a signal is the ordinary end.
  return interrupted_by != 0 && !request.serve ? 128 + interrupted_by : code;
}

}  // namespace penstock
