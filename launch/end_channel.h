// The channel by which the ranks of a job tell `penstock launch --run` how they ended: TCP to its host, beside MPI.
//
//   EndListener listener(JobOutcome::Spec{...}, remote, now);       // launch; then, in the environment of mpirun:
//   setenv(kEndChannelVariable, listener.address()), setenv(kEndTokenVariable, listener.token())
//   listener.collect_fds(fds); poll(...); listener.read(now);  listener.job().code();   // job_outcome.h
//
//   EndReporter end = EndReporter::from_environment();          // a rank, early in main
//   end.running(loads);                                         // all ranks are connected to each other
//   end.ended(code, why);                                       // the last thing before it leaves
//
// Purpose: mpirun that goes on after a rank's death (--enable-recovery) exits 0 whatever happened.
// On the wire: lines of JSON. First {"token", "rank", "host", "pid"}, then {"running": true, "loads": true}, then
//   {"will_end": code, "why": text} where the end takes a while, then {"end": code, "why": text, "mpi_ended": true}. A
//   connection that closes without the last is a rank that was killed, or whose host is gone. A trainer's host that does not
//   answer for a minute, or three times balancer.lost_after_s if that is longer, counts as gone. For a rank on this host the
//   kernel tells which signal it was, unless mpirun has collected the status before. Rank 0 also sends {"report": text},
//   for launch's stdout: mpirun says nothing where it cannot write there. And {"back": names} of loaders that were lost
//   and joined again: their processes have lived all the time, so that nothing else shows it here.
// Trust: the token travels in the environment, not on the command line; who does not know it is not listened to. A line
//   has at most 64 KiB, 16 MiB from a rank that has said it. A rank says its token once: who says to be one that has is
//   hung up on, and so is the oldest that says nothing, where 64 more of them than the job has ranks are connected.
// The variables are taken out of the rank's environment, so that programs it starts report nothing.
// Thread-safety: one thread each. Ownership: each its sockets. Failure: EndListener's constructor throws Error(runtime);
//   a reporter that cannot reach its launch has a problem(), and says nothing there; the job then ends with 5.
#pragma once

#include <poll.h>

#include <cstddef>
#include <list>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <vector>

#include "launch/job_outcome.h"
#include "runtime/base/memory.h"

namespace penstock {

inline constexpr const char* kEndChannelVariable = "PENSTOCK_END_CHANNEL";  // "10.0.0.1,10.1.0.1:40123"
inline constexpr const char* kEndTokenVariable = "PENSTOCK_END_TOKEN";

class EndListener {
 public:
  // `remote`: ranks run on other hosts too; otherwise only this host can connect.
  EndListener(const JobOutcome::Spec& spec, bool remote, Nanoseconds now);

  const std::string& address() const noexcept { return address_; }
  const std::string& token() const noexcept { return token_; }
  // While no descriptors are left the listening socket is not among them, or poll would return at once: call read() again
  // after a while.
  void collect_fds(std::vector<pollfd>& fds) const;
  void read(Nanoseconds now);  // never waits
  // Reads until every rank that was heard of has said how it ends or hung up, and not beyond `limit`. A rank's words may
  // still be on their way when others know by another way that it has left.
  void read_last_words(const Clock& clock, Nanoseconds limit);
  void ended_from_outside(Nanoseconds now) { job_.ended_from_outside(now); }
  void died_unheard(int rank, const std::string& host) { job_.died_unheard(rank, host); }
  const JobOutcome& job() const noexcept { return job_; }
  const std::string& report() const noexcept { return report_; }  // of rank 0; empty: it sent none

 private:
  struct Connection {
    UniqueFd fd;
    std::string text;  // of a line that is not complete
    int rank = -1;     // -1: it has not said the token
    pid_t pid = -1;    // on this host; -1: on another, or in a pid namespace of its own
  };
  bool read_lines(Connection& connection, Nanoseconds now);
  bool read_line(Connection& connection, const std::string& line, Nanoseconds now);
  bool handshake(Connection& connection, const nlohmann::json& message, Nanoseconds now);
  void hang_up_on_strangers();

  const int ranks_;
  const double silence_s_;  // after which a trainer's host is lost
  JobOutcome job_;
  std::string report_;
  UniqueFd listening_;
  bool no_descriptors_ = false;  // at the last look: poll would return at once, again and again
  std::string address_;
  std::string token_;
  std::list<Connection> connections_;  // as they came
  std::set<int> known_;                // ranks that have said the token
};

class EndReporter {
 public:
  // Does nothing at all where the environment names no channel.
  static EndReporter from_environment();
  // Why launch cannot be reached, with a remedy; empty: it can, or nobody asks.
  const std::string& problem() const noexcept { return problem_; }

  void running(bool loads);
  // For launch's stdout; waits up to a minute for a launch that is stopped. False: it was not sent, and this process may
  // print it itself.
  bool report(const std::string& text);
  // For launch's last line: the loaders that were lost and joined again, by name.
  void came_back(const std::string& loaders);
  // It goes on for a while to end in order.
  void will_end(int exit_code, const std::string& why);
  // The first word counts. `mpi_ended`: by MPI_Finalize, where MPI was begun.
  void ended(int exit_code, const std::string& why, bool mpi_ended = true);

 private:
  void send(const std::string& line);

  UniqueFd fd_;
  std::string problem_;
};

}  // namespace penstock
