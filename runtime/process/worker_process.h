// A child process that works for one thread at a time of this process: a stream socket to talk over, its output, its
// end.
//
//   WorkerProcess worker = WorkerProcess::start({"python3", "worker.py"}, environment);
//   ... worker.socket(), worker.output() ...            // both non-blocking, for poll()
//   std::string how = worker.end(0.5);                  // "was killed by SIGSEGV"; afterwards nothing of it is left
//
// start(): the child is started by posix_spawn, which is safe in a process with threads and MPI, because none of our
//   code runs in between. It gets two more arguments, the numbers of two descriptors: its end of the socket, and a
//   lifeline (the read end of a pipe that nobody writes to) that hangs up when this process is gone, however it ended.
//   Workers arm it with O_ASYNC and SIGKILL, so that the kernel ends them even in the middle of a call that never
//   returns. (PR_SET_PDEATHSIG would not do: it is tied to the thread that made the child, and executors' threads come
//   and go.)
// The child leads a process group of its own: Ctrl-C in a terminal misses it, and end() reaches its children. No signal
//   is blocked or ignored there; stdin is /dev/null; stdout and stderr are one pipe: output().
// forked() is for a worker that a child of this process forks on request (datasets/python_fork_server.h). It is given
//   the same, and a pipe on which that child reports how the worker ended, because this process cannot wait for a
//   grandchild. Its signals are as that child has them.
// Thread-safety: one thread at a time. Ownership: owns the child; destroying it ends it.
// Failure: start() throws Error(runtime) naming the program.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/memory.h"

namespace penstock {

// What a worker has in its hands.
struct WorkerEnds {
  UniqueFd socket;
  UniqueFd output;    // to write
  UniqueFd lifeline;  // to read
  UniqueFd status;    // to write: of a forked one alone, for whoever forks it: its wait status, u32
};

class WorkerProcess {
 public:
  // argv[0] is looked up in PATH.
  static WorkerProcess start(std::vector<std::string> argv, const std::vector<std::string>& environment);
  // None at all: a thread of this process holds the other end of `socket`, and ends when that hangs up.
  static WorkerProcess in_this_process(UniqueFd socket);
  // `fork` hands the descriptors to the process that forks the worker, into a group of its own, and returns its pid. That
  // process reaps it no sooner than the other end of `status` is closed. What `fork` throws goes through.
  static WorkerProcess forked(const std::function<pid_t(const WorkerEnds&)>& fork);

  WorkerProcess() = default;
  WorkerProcess(WorkerProcess&& other) noexcept;
  WorkerProcess& operator=(WorkerProcess&& other) noexcept;
  ~WorkerProcess() { (void)end(0); }

  explicit operator bool() const noexcept { return pid_ > 0; }
  pid_t pid() const noexcept { return pid_; }
  int socket() const noexcept { return socket_.get(); }
  int output() const noexcept { return output_.get(); }

  // Hangs up, so that the child ends by itself; end() waits for it.
  void hang_up() noexcept { socket_.reset(); }
  // Waits up to `grace_s` for the child to end by itself, then kills its group. How it ended, in words: "was killed by
  // SIGKILL (by us)" where it had to be.
  std::string end(double grace_s) noexcept;

 private:
  WorkerEnds make_ends();                                   // and keeps the others
  bool wait_for(pid_t pid, double limit_s) const noexcept;  // has it ended?
  bool keeps_pid(pid_t pid) const noexcept;                 // is there somebody who has to reap it?
  std::string how_it_ended(pid_t pid) const noexcept;       // in words; and reaps it. Empty: nobody knows

  pid_t pid_ = 0;
  UniqueFd socket_;
  UniqueFd output_;
  UniqueFd lifeline_;
  UniqueFd status_;   // of a forked one
  UniqueFd process_;  // of a forked one: a pidfd
};

// The two ends of a worker's socket: ours, which does not block, and the worker's, out of the way of low numbers.
std::pair<UniqueFd, UniqueFd> worker_sockets();

// This process's environment for a worker: without the variables of a launcher (a worker is no rank), and with one
// thread for numerical libraries where nothing else is said: workers are many, and sums must not depend on their
// number.
std::vector<std::string> worker_environment();

}  // namespace penstock
