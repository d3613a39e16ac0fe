// A process that has imported what Python workers need, and forks them.
//
//   PythonForkServer::Place place{argv, environment, main, path};
//   std::shared_ptr<PythonForkServer> server = PythonForkServer::shared(place);
//   server->prepare(config, limit_s, stop);                      // imports what the config's dataset and functions name
//   std::optional<WorkerProcess> worker = server->fork(0, limit_s, stop);     // nothing: start one as a program
//
// Purpose: importing torch takes seconds of CPU time. Workers of one pool, and of several splits, have it once.
// It is _fork_server.py, which says what is imported, and why nothing is made there. Pools of this process share one wherever their
//   programs, environments and import paths are the same; it ends with the last of them.
// Failure: Error(runtime) where there is no such interpreter, or the job ends meanwhile. Where it cannot fork (its modules have threads, the kernel has no pidfd) or has come to an end,
//   fork() gives nothing for good, and the worker that is then started as a program says what is wrong.
// Thread-safety: all functions from any thread; one request at a time, so others wait for an import, `limit_s` at most.
#pragma once

#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "runtime/base/thread_annotations.h"
#include "runtime/datasets/python_worker.h"

namespace penstock {

class PythonForkServer {
 public:
  struct Place {
    std::vector<std::string> argv;  // of the fork server
    std::vector<std::string> environment;
    std::string main;  // as DatasetSpec's
    std::string path;

    friend bool operator==(const Place&, const Place&) = default;
  };
  static std::shared_ptr<PythonForkServer> shared(const Place& place);

  explicit PythonForkServer(Place place);

  // `config`: as hello's.
  void prepare(const std::string& config, double limit_s, const std::stop_token& stop);
  std::optional<WorkerProcess> fork(size_t number, double limit_s, const std::stop_token& stop);

 private:
  // Nothing: it has come to an end.
  std::optional<std::vector<std::byte>> ask(const PythonRequest& request, double limit_s, const std::stop_token& stop,
                                            const WorkerEnds* ends) PENSTOCK_REQUIRES(mutex_);

  const Place place_;
  Mutex mutex_;
  PythonWorker server_ PENSTOCK_GUARDED_BY(mutex_);
  bool can_fork_ PENSTOCK_GUARDED_BY(mutex_) = true;
};

}  // namespace penstock
