// The small process beside a rank that starts the training program, passes signals on, and ends everything at the end.
//
//   int main(int argc, char** argv) {
//     Helper helper = Helper::fork_now();            // first thing: before MPI_Init, before any thread
//     ...
//     ProgramSpec spec;
//     spec.argv = {"python", "train.py"};
//     spec.environment = trainer_environment(inherited_environment(), place);
//     helper.start(spec);
//     poll(helper.poll_fd()) ...; while (auto report = helper.next_report()) ...
//     helper.stop(5.0);                              // SIGTERM, 5 s, SIGKILL; then the report `ended`
//
// Why a process of its own: a rank that runs MPI and threads must not fork; mpirun may SIGKILL its ranks a second after
//   SIGTERM, and the program needs longer to write its checkpoint; and after a kill -9 of the rank somebody has to end
//   the program. The helper is in a session of its own (mpirun's and the terminal's signals miss it), owns nothing but
//   its socket and stdio, and is the subreaper of the program: daemons it forks off stay within reach.
//
//   rank ──start, signal, ask, stop──▶ helper ──fork──▶ program ─▶ its workers, daemons, …
//        ◀──started, here, exited─────
//   (this header)   helper_protocol.h   helper_loop.h   program_start.h, output_relay.h
//
// The end comes by stop() or by the socket's hang-up (the rank died, or destroyed its Helper): SIGTERM to the program's
//   whole tree, up to the grace, SIGKILL to every descendant until none is left, then the helper exits. A program that
//   ended by itself is reported at once; what it left running (an uploader, say) lives until that end.
// If the helper itself is killed, the program dies with it (PR_SET_PDEATHSIG), and the rank, made a subreaper too,
//   inherits and ends the rest when it reads the hang-up: for that reason the process that calls fork_now() should have
//   no children but helpers, which are spared.
// A helper that is stopped (SIGSTOP) is continued when its end comes. Before that it would not tell that the program ended:
//   whoever waits for the program asks from time to time whether its helper is there.
// Signals: SIGTERM, SIGINT, SIGHUP and SIGQUIT go to the whole tree (a shell in front would die and leave the program
//   unaware); the others to the program alone (workers without a handler for SIGUSR1 would die of it).
// The program gets: signal actions as the rank found them, nothing blocked, our stdout and stderr, /dev/null as stdin
//   unless `keep_stdin`, none of our descriptors.
// Thread-safety: one thread at a time. Ownership: the Helper owns its child process; destroying it does not wait.
// Failure: fork_now() and start() throw Error(runtime); a program that cannot be started is a report, not an exception;
//   a lost helper is the report `ended` with `clean` false.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "runtime/process/program_start.h"

namespace penstock {

struct HelperReport {
  enum class Kind {
    started,       // pid
    start_failed,  // text says why; the helper takes another start()
    exited,        // pid, status (of waitpid)
    here,          // the answer to ask()
    ended,         // the helper is gone, the last report; `clean` when it left nothing running
  };
  Kind kind = Kind::ended;
  pid_t pid = 0;
  int status = 0;
  bool clean = true;
  std::string text;  // of start_failed: "cannot start 'pyhton': No such file or directory"
};

class Helper {
 public:
  struct Options {
    // Held until the end and removed by the last holder of the node (session_folder.h); empty: none.
    std::string session_folder;
    // The process that started this rank (mpirun or its daemon on the node): when it dies, the rank gets SIGTERM, the
    // program its grace, and then the rank SIGKILL. Ranks of Open MPI 5 do not notice by themselves. 0: nobody.
    pid_t launcher = 0;
  };
  // Returns in the caller only. The plain form takes the session folder from PENSTOCK_SESSION_FOLDER, and watches the
  // parent process where detect_launcher() finds one.
  static Helper fork_now();
  static Helper fork_now(const Options& options);

  Helper(Helper&& other) noexcept;
  Helper& operator=(Helper&& other) noexcept;
  Helper(const Helper&) = delete;
  Helper& operator=(const Helper&) = delete;
  ~Helper();  // hangs up: the helper ends the program as after stop(grace_s), on its own

  void start(const ProgramSpec& spec);  // Error(usage) for an empty argv; one program at a time
  void signal(int number);              // to the running program, as above; without one: nothing
  void stop(double grace_s);            // may be repeated, with less grace; never with more
  // Whether it is there, to be answered by the report `here`. One question at a time; false: the last is not answered.
  bool ask();
  void resume() noexcept;                       // SIGCONT to the helper itself, in case that it is stopped
  void kill() noexcept;                         // SIGKILL to the helper: next_report() then ends what it looked after
  int poll_fd() const noexcept { return fd_; }  // readable when next_report() has something; -1 after `ended`
  std::optional<HelperReport> next_report();    // never waits
  // Waits for the next report up to `limit_s`; nothing when none came.
  std::optional<HelperReport> wait_report(double limit_s);

  pid_t pid() const noexcept { return pid_; }  // of the helper, for tests and messages

 private:
  Helper(int fd, pid_t pid) : fd_(fd), pid_(pid) {}
  bool send_packet(const std::vector<std::byte>& packet);
  void hang_up() noexcept;

  int fd_ = -1;
  pid_t pid_ = -1;
  bool asked_ = false;
};

}  // namespace penstock
