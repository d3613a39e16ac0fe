// The seam between penstock and its MPI component (libpenstock_mpi.so), which is loaded at run time: nothing else in
// the library links MPI or sees mpi.h, so one build of everything else serves machines with and without it. (What a
// program that is an MPI rank includes, bindings/mpi/join.h, is compiled in that program.)
//
//   std::unique_ptr<MpiSession> session = start_mpi(options);   // loads it; MPI_Init_thread in a thread of its own
//   // or, of a program that is an MPI rank itself: options.communicator = MPI_Comm_c2f(comm)
//   session->world();                                    // ranks, hosts
//   std::unique_ptr<Endpoint> end = session->endpoint();
//   session->finish(all_alive, timeout_ns);              // flush, barrier, MPI_Finalize; or, after a loss, none
//
// Thread level: all of our MPI calls are made by one progress thread. From Init to Finalize MPI_THREAD_FUNNELED is enough;
// it is asked for and what is provided is checked. Beside a program that calls MPI itself it has to be
// MPI_THREAD_MULTIPLE, which is the program's to ask for. The thread backs off when nothing moves, so a waiting rank
// burns no core.
// Ownership: the session owns the thread; endpoints share it and may be destroyed before finish(). Memory of chunk
// buffers that were sent must stay until finish() returned, or the process ends: sends under way read from it.
// Thread-safety: the session from one thread. Failure: start_mpi() and the collectives throw Error(runtime), and
// Error(peer_lost) where other ranks do not come.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/error.h"
#include "transport/asked_to_end.h"
#include "transport/transport.h"

namespace penstock {

struct MpiRankInfo {
  int rank = 0;
  int local_rank = 0;  // order of ranks on this node
  std::string host;    // what the node calls itself; two containers may call themselves the same
  int node = 0;        // the lowest rank that shares memory with this one: equal on one node, and only there
};

struct MpiWorldInfo {
  int rank = 0;
  int size = 1;
  std::vector<MpiRankInfo> ranks;
  std::string library;    // "Open MPI v4.1.4, ..."
  std::string job_id;     // drawn by rank 0, the same everywhere: names sockets
  std::string job_token;  // likewise; a secret
};

struct MpiOptions {
  int64_t max_message_bytes = int64_t{16} << 20;  // larger payloads are cut; must be the same at every rank
  double start_timeout_s = 300;                   // longest wait for the other ranks: to start MPI, and in collectives
  // The program's own, as a Fortran handle: MPI runs already, and goes on when the session is over.
  std::optional<int> communicator;
  // Looked at now and then while the others are waited for, until the endpoint is made: true ends that, with Error(runtime).
  AskedToEnd asked_to_end;
  // Only where the program joined: called in MPI_Finalize, in the program's thread, where the session is not over yet.
  std::function<void()> before_finalize;
};

class MpiSession {
 public:
  virtual ~MpiSession() = default;
  virtual const MpiWorldInfo& world() const = 0;
  // What `mine` is at every rank, in rank order; collective, before the first endpoint() only.
  virtual std::vector<std::string> all_gather(const std::string& mine) = 0;
  virtual void barrier() = 0;  // likewise
  // Likewise: the communicator (a Fortran handle) of the ranks that say `in`, in their order; the others get that of
  // MPI_COMM_NULL. The caller's to free.
  virtual int communicator_of(bool in) = 0;
  virtual std::unique_ptr<Endpoint> endpoint() = 0;
  // With a communicator of the program's: true when all ranks have met at the end within the time; the thread is gone
  // in any case, and calls MPI no more. After false what was sent may still be read by MPI, and its memory has to stay.
  // Otherwise true when MPI_Finalize ran. Collective among the ranks that call it with all_alive; with all_alive = false
  // nothing is waited for, as MPI_Finalize would hang after a loss: the caller flushes and leaves with _exit.
  virtual bool finish(bool all_alive, Nanoseconds timeout_ns) = 0;
  // Why finish(true, ...) was false, where MPI_Finalize was to run: what it waited for in vain, or MPI's error.
  virtual std::string why_unfinished() const = 0;
  // What the options' predicate says now.
  virtual bool asked_to_end() const = 0;
};

// What the component was built on; asked without starting MPI.
struct MpiAbout {
  std::string library;                                        // "Open MPI v4.1.4, package: ..."
  enum class Cuda { unknown, no, yes } cuda = Cuda::unknown;  // does it take pointers to a GPU's memory?
};

// The component's symbols, found by name. The number in a name counts the layouts of Endpoint and what it hands over.
inline constexpr const char* kMpiComponentEntry = "penstock_mpi_start_8";
using MpiStartFunction = MpiSession* (*)(const MpiOptions* options, std::optional<Error>* error);
inline constexpr const char* kMpiAboutEntry = "penstock_mpi_about";
using MpiAboutFunction = void (*)(MpiAbout* about);

// Looks beside the library (or program) that this function is in, then in the system's folders.
std::unique_ptr<MpiSession> start_mpi(const MpiOptions& options);
// Error(runtime) where there is no component, or its MPI library cannot be loaded.
MpiAbout about_mpi();

}  // namespace penstock
