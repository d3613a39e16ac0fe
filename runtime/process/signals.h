// Signals as something to poll, for the `penstock` program. Library code never uses it: a program's signals are its
// own.
//
//   SignalFd signals({SIGTERM, SIGINT, SIGUSR1, SIGUSR2});   // early in main, before any thread exists
//   poll(signals.fd()) ...;  while (auto arrived = signals.next()) forward(*arrived);
//
// Blocks the signals for this thread and every thread made later, so none of them interrupts a call or runs a handler;
// restores the old mask at the end (of the thread that destroys it: the same one). Programs started meanwhile must
// reset their mask: Helper does. Thread-safety: fd() and next() from one thread. Failure: the constructor throws
// Error(runtime).
#pragma once

#include <signal.h>

#include <initializer_list>
#include <optional>

#include "runtime/base/clock.h"

namespace penstock {

class SignalFd {
 public:
  explicit SignalFd(std::initializer_list<int> signals);
  ~SignalFd();
  SignalFd(const SignalFd&) = delete;
  SignalFd& operator=(const SignalFd&) = delete;

  int fd() const noexcept { return fd_; }
  std::optional<int> next();  // never waits
  // Whether it is pending: it has arrived, and next() has not returned it yet. From any thread.
  bool has(int signal) const;

 private:
  sigset_t before_{};
  int fd_ = -1;
};

// What `penstock launch` sends to mpirun, which passes it on to every rank. mpirun itself has SIGINT and SIGTERM blocked:
// a signal to a whole process group or control group reaches it beside what launch passes on, and the second one would
// have it kill its ranks in the middle of the programs' grace. A rank that does not listen yet is ended by both.
inline constexpr int kEndInOrder = SIGALRM;
inline constexpr int kEndAtOnce = SIGXCPU;

// What signals ask for together. The first one that asks for an end gives the programs their grace; what follows within
// kSameRequest is the same request by another way, and after that it means at once.
class EndRequest {
 public:
  static constexpr Nanoseconds kSameRequest = 2 * kSecond;
  enum class Answer { nothing, in_order, at_once };

  // For SIGINT, SIGTERM, SIGHUP, SIGQUIT, kEndInOrder and kEndAtOnce (which launch repeats).
  Answer arrived(int signal, Nanoseconds now) noexcept;

 private:
  std::optional<Nanoseconds> since_;
};

// For a signal that a write raises: the write then fails, with an error that its caller answers, where the signal would
// have ended the process without a word. SIGXFSZ: a file beyond the limit on file sizes (ulimit -f), like a full disk.
// SIGPIPE, in ranks: MPI writes to the TCP connection of a rank that has just died. Early, before any thread exists:
// threads inherit it. Blocked and not ignored, so that programs started later have it as they expect.
void block_signal_of_writes(int signal) noexcept;

}  // namespace penstock
