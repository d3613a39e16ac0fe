// A whole job in threads of one process: a receiver with the coordinator, and a loader, joined by the inproc transport.
//
//   auto world = EmbeddedWorld::shared(job, options);   // one per process and settings, while somebody uses it
//   UniqueFd socket = world->connect();                 // a client's end, speaking client_protocol.h
//
// Used by programs that were not started under `penstock run`. Nothing differs from a job under mpirun but the
// transport. No signal of the program is delivered to its threads.
// Ownership: the destructor stops and joins all threads. Thread-safety: shared(), connect() and problem() from any
// thread. Failure: what ends a thread hangs up on the clients, and problem() says why.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/base/memory.h"
#include "runtime/embedded/receiver_host.h"
#include "runtime/job/job.h"
#include "runtime/receiver/receiver.h"

namespace penstock {

struct EmbeddedOptions {
  int replicas = 1;       // of the whole job
  int replica = 0;        // of this process
  std::vector<int> cpus;  // for the loader's threads
};

ReceiverOptions receiver_options(const Job& job);
CoordinatorOptions coordinator_options(const Job& job);

// What makes two worlds different: every key that its loader and receiver read, from the table of keys, so that one that
// is added cannot be forgotten.
std::string world_settings(const Job& job, const EmbeddedOptions& options);

class EmbeddedWorld final : public ReceiverHost {
 public:
  EmbeddedWorld(const Job& job, const EmbeddedOptions& options);
  ~EmbeddedWorld() override;

  static std::shared_ptr<EmbeddedWorld> shared(const Job& job, const EmbeddedOptions& options);

  UniqueFd connect() override;
  std::string problem() const override;
  std::string loader_report() const override;  // so far; from any thread

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
  int owner_ = 0;  // process id
};

}  // namespace penstock
