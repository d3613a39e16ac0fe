#include "runtime/process/helper_loop.h"

#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <span>
#include <utility>
#include <vector>

#include "runtime/base/memory.h"
#include "runtime/base/wire.h"
#include "runtime/process/helper_protocol.h"
#include "runtime/process/session_folder.h"
#include "runtime/process/tree.h"

namespace penstock {
namespace {

using Steady = std::chrono::steady_clock;

void close_all_but(int keep) {
#ifdef SYS_close_range
  const auto from = static_cast<unsigned>(keep);
  if ((keep <= 3 || syscall(SYS_close_range, 3U, from - 1, 0U) == 0) &&
      syscall(SYS_close_range, from + 1, ~0U, 0U) == 0) {
    return;
  }
#endif
  DIR* dir = opendir("/proc/self/fd");  // kernels before 5.9
  if (dir == nullptr) return;
  std::vector<int> open_ones;
  while (const dirent* entry = readdir(dir)) {
    const int fd = std::atoi(entry->d_name);
    if (fd > 2 && fd != keep && fd != dirfd(dir)) open_ones.push_back(fd);
  }
  closedir(dir);
  for (const int fd : open_ones) close(fd);
}

class HelperLoop {
 public:
  HelperLoop(int socket, const std::string& session_folder, pid_t launcher)
      : socket_(socket),
        folder_(session_folder),
        rank_(getppid()),
        launcher_(launcher > 1 ? watch_process(launcher).release() : -1) {
    sigset_t wanted;
    sigemptyset(&wanted);
    sigaddset(&wanted, SIGCHLD);
    sigaddset(&wanted, SIGTERM);
    signals_ = signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK);
  }

  // Returns the helper's exit status.
  int run() {
    send(helper_packet(signals_ >= 0 ? HelperPacket::ready : HelperPacket::ended));
    if (signals_ < 0) return 1;
    try {
      while (!over_) step();
    } catch (...) {  // out of memory, or nonsense on the socket: end as after a hang-up, at once
    }
    const bool clean = end_descendants(kKillLimit_s, [this](pid_t pid, int status) { reaped(pid, status); });
    flush(1.0);
    if (launcher_gone_) signal_rank(SIGKILL);
    folder_.release();
    send(helper_packet(HelperPacket::ended, clean));
    return clean ? 0 : 1;
  }

 private:
  void step() {
    std::array<pollfd, 6> fds{{{signals_, POLLIN, 0},
                               {hung_up_ ? -1 : socket_, POLLIN, 0},
                               {exec_, POLLIN, 0},
                               relays_[0].wanted(),
                               relays_[1].wanted(),
                               {launcher_, POLLIN, 0}}};
    // While ending, look at the tree from time to time too: a grandchild's end is told to its parent, not to us.
    const int wait_ms = ending_ ? std::min(milliseconds_until(deadline_), 50) : -1;
    if (poll(fds.data(), fds.size(), wait_ms) < 0 && errno != EINTR) throw errno;
    if (fds[2].revents != 0) finish_exec();
    if (fds[3].revents != 0) relays_[0].move();
    if (fds[4].revents != 0) relays_[1].move();
    if (fds[0].revents != 0) take_signals();
    if (fds[1].revents != 0) take_packet();
    if (fds[5].revents != 0) {
      close(std::exchange(launcher_, -1));
      launcher_gone_ = true;
      signal_rank(SIGTERM);
      signal_rank(SIGCONT);  // as below
      begin_end(grace_s_);
    }
    if (ending_) {
      reap();
      over_ = Steady::now() >= deadline_ || descendants(getpid()).empty();
      // A rank without its launcher has the grace too, to end by itself.
      if (launcher_gone_ && !hung_up_) over_ = Steady::now() >= deadline_;
    }
  }

  // What the program has written so far, before we say that it ended. Its last words are what people look for, so a
  // reader that is behind (the pipe to mpirun is full) is waited for, within the limit.
  void flush(double limit_s) {
    const auto limit = deadline_after(limit_s);
    while (Steady::now() < limit) {
      std::array<pollfd, 2> fds{{relays_[0].wanted(), relays_[1].wanted()}};
      const bool holds_some = ((fds[0].events | fds[1].events) & POLLOUT) != 0;
      if (poll(fds.data(), fds.size(), holds_some ? milliseconds_until(limit) : 0) <= 0) return;
      if (fds[0].revents != 0) relays_[0].move();
      if (fds[1].revents != 0) relays_[1].move();
    }
  }

  void take_signals() {
    signalfd_siginfo info{};
    while (read(signals_, &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
      if (info.ssi_signo == SIGTERM) begin_end(grace_s_);
    }
    reap();
  }

  void reap() {
    int status = 0;
    for (pid_t pid = 0; (pid = waitpid(-1, &status, WNOHANG)) > 0;) reaped(pid, status);
  }

  void reaped(pid_t pid, int status) {
    if (pid != program_) return;
    if (exec_ >= 0) finish_exec();  // it says whether there was a program at all
    if (program_ != pid) return;    // start failed: reported already
    program_ = -1;
    // A program that SIGTERM ended may have been forking a child just then, unseen by the walk over the tree.
    if (ending_ && WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM) signal_descendants(getpid(), SIGTERM);
    flush(0.2);
    send(helper_packet(HelperPacket::exited, int64_t{pid}, status));
  }

  void take_packet() {
    std::array<std::byte, kSpecPartBytes + 64> buffer;
    const ssize_t got = recv(socket_, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) {
      hung_up_ = true;
      begin_end(grace_s_);
      return;
    }
    WireReader in(std::span<const std::byte>(buffer.data(), static_cast<size_t>(got)), "helper command");
    const auto kind = static_cast<HelperPacket>(in.u8());
    switch (kind) {
      case HelperPacket::spec_part:
      case HelperPacket::spec_end: {
        const auto part = in.raw(in.left());
        spec_.insert(spec_.end(), part.begin(), part.end());
        if (kind == HelperPacket::spec_end) start(decode_spec(std::exchange(spec_, {})));
        break;
      }
      case HelperPacket::signal: pass_on(in.i32()); break;
      case HelperPacket::stop: begin_end(in.f64()); break;
      case HelperPacket::ask: send(helper_packet(HelperPacket::here)); break;
      default: break;
    }
  }

  void pass_on(int signal) {
    if (program_ < 0) return;
    if (signal == SIGTERM || signal == SIGINT || signal == SIGHUP || signal == SIGQUIT) {
      signal_descendants(getpid(), signal);
    } else {
      kill(program_, signal);
    }
  }

  void begin_end(double grace_s) {
    const auto deadline = deadline_after(grace_s);
    if (ending_) {
      deadline_ = std::min(deadline_, deadline);
      return;
    }
    ending_ = true;
    deadline_ = deadline;
    signal_descendants(getpid(), SIGTERM);
    signal_descendants(getpid(), SIGCONT);  // a stopped process would not see it
  }

  // The rank is our parent, so its number cannot have been given to another process while that is so.
  void signal_rank(int signal) const {
    if (rank_ > 1 && getppid() == rank_) kill(rank_, signal);
  }

  void start(const ProgramSpec& spec) {
    grace_s_ = spec.grace_s;
    if (ending_ || program_ >= 0) {
      fail(ending_ ? "the job is ending" : "a program is running already");
      return;
    }
    const ProgramStart start = start_program(spec, relays_);
    if (!start.problem.empty()) {
      fail(start.problem);
      return;
    }
    program_ = start.pid;
    exec_ = start.exec_pipe;
  }

  void finish_exec() {
    const std::string problem = exec_problem(std::exchange(exec_, -1));
    if (!problem.empty()) {
      program_ = -1;
      fail(problem);
      return;
    }
    send(helper_packet(HelperPacket::started, int64_t{program_}));
  }

  void fail(const std::string& text) { send(helper_packet(HelperPacket::start_failed, text.substr(0, 4096))); }

  void send(const std::vector<std::byte>& packet) {
    ::send(socket_, packet.data(), packet.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  int socket_;
  SessionFolder folder_;
  pid_t rank_;
  int launcher_;  // a pidfd, close-on-exec by nature; readable when the launcher is gone
  bool launcher_gone_ = false;
  int signals_ = -1;
  int exec_ = -1;       // reads why exec failed; end of file when it did not
  pid_t program_ = -1;  // running, or being started
  std::array<OutputRelay, 2> relays_;
  std::vector<std::byte> spec_;
  double grace_s_ = ProgramSpec{}.grace_s;
  bool hung_up_ = false;
  bool ending_ = false;
  bool over_ = false;
  Steady::time_point deadline_{};
};

}  // namespace

void helper_main(int socket, const std::string& session_folder, pid_t launcher) {
  setsid();
  prctl(PR_SET_NAME, "penstock-helper");
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  prctl(PR_SET_PDEATHSIG, SIGCONT);  // stopped, it would not notice that its rank is gone
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);
  close_all_but(socket);
  int status = 1;
  try {
    status = HelperLoop(socket, session_folder, launcher).run();
  } catch (...) {
  }
  _exit(status);
}

}  // namespace penstock
