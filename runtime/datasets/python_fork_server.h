// A process that has imported what Python workers need, and forks them.
//
//   PythonForkServer::Place place{argv, environment, main, path, folder};
//   std::shared_ptr<PythonForkServer> server = PythonForkServer::shared(place);
//   std::optional<WorkerProcess> worker = server->make_worker(config, 0, limit_s, stop);     // nothing: start one as a program
//
// Purpose: importing torch takes seconds of CPU time. Workers of one pool, and of several splits, have it once.
// It is _fork_server.py, which says what is imported, and when it does not fork. Pools of this process share one wherever
//   their programs, environments, import paths and working folders are the same; it ends with the last of them.
// Failure: Error(runtime) where there is no such interpreter, or the job ends meanwhile. A server that has come to an end is
//   started again for the next worker, but for a config that it ended with; such a config's workers, and those whose
//   modules it cannot fork, are started as programs, and say what is wrong.
// Thread-safety: all functions from any thread; one request at a time. Others wait for an import, `limit_s` at most each, or
//   until their own job ends.
#pragma once

#include <memory>
#include <optional>
#include <set>
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
    std::string folder;  // the working one

    friend bool operator==(const Place&, const Place&) = default;
  };
  static std::shared_ptr<PythonForkServer> shared(const Place& place);

  explicit PythonForkServer(Place place);
  ~PythonForkServer();

  // A worker that has imported what `config` (as hello's) names, and has the number `number`. `limit_s`: of the import.
  std::optional<WorkerProcess> make_worker(const std::string& config, size_t number, double limit_s,
                                           const std::stop_token& stop);

 private:
  class Turn;  // of the one who asks the server something

  // What it answered. Nothing: it cannot, or has come to an end; then it is gone.
  std::optional<std::vector<std::byte>> ask(const PythonRequest& request, double limit_s, const std::stop_token& stop,
                                            const WorkerEnds* ends);
  bool prepare(const std::string& config, double limit_s, const std::stop_token& stop);
  void forget() noexcept;

  const Place place_;
  Mutex mutex_;
  CondVar changed_;
  bool busy_ PENSTOCK_GUARDED_BY(mutex_) = false;
  // These belong to whoever has the turn.
  PythonWorker server_;
  std::set<size_t> prepared_;  // hashes of configs
  std::set<size_t> hopeless_;  // of those that it ended with, or cannot fork for
  bool has_forked_ = false;
};

}  // namespace penstock
