#include "runtime/process/worker_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <tuple>
#include <utility>

#include "runtime/base/clock.h"
#include "runtime/base/error.h"
#include "runtime/process/environment.h"
#include "runtime/process/exec_list.h"
#include "runtime/process/tree.h"

namespace penstock {
namespace {

constexpr int kSocketFd = 3;
constexpr int kLifelineFd = 4;
// A process that is killed in the middle of a slow disk's work goes when that is done.
constexpr double kEndOfKilled_s = 60;
constexpr int kStatus_ms = 500;  // the forker may be busy with an import

struct SpawnActions {
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;

  SpawnActions() {
    ::posix_spawn_file_actions_init(&files);
    ::posix_spawnattr_init(&attributes);
  }
  ~SpawnActions() {
    ::posix_spawn_file_actions_destroy(&files);
    ::posix_spawnattr_destroy(&attributes);
  }
  SpawnActions(const SpawnActions&) = delete;
  SpawnActions& operator=(const SpawnActions&) = delete;
};

// Out of the way of the numbers that the child's descriptors get.
UniqueFd moved_up(UniqueFd fd) {
  UniqueFd high(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 10));
  if (!high) throw Error(ErrorKind::runtime, system_error_text("cannot duplicate a descriptor"));
  return high;
}

std::pair<UniqueFd, UniqueFd> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw Error(ErrorKind::runtime, system_error_text("cannot make a pipe"));
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

void set_nonblocking(int fd) {
  (void)::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
}

}  // namespace

std::pair<UniqueFd, UniqueFd> worker_sockets() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    throw Error(ErrorKind::runtime, system_error_text("cannot make a socket pair"));
  }
  UniqueFd ours(ends[0]);
  UniqueFd theirs = moved_up(UniqueFd(ends[1]));
  set_nonblocking(ours.get());
  const int buffer_bytes = 1 << 20;  // a picture in one go, where the system allows as much
  (void)::setsockopt(ours.get(), SOL_SOCKET, SO_SNDBUF, &buffer_bytes, sizeof buffer_bytes);
  (void)::setsockopt(theirs.get(), SOL_SOCKET, SO_SNDBUF, &buffer_bytes, sizeof buffer_bytes);
  return {std::move(ours), std::move(theirs)};
}

WorkerProcess WorkerProcess::in_this_process(UniqueFd socket) {
  WorkerProcess worker;
  worker.socket_ = std::move(socket);
  return worker;
}

WorkerEnds WorkerProcess::make_ends() {
  WorkerEnds theirs;
  std::tie(socket_, theirs.socket) = worker_sockets();
  std::tie(output_, theirs.output) = make_pipe();
  std::tie(theirs.lifeline, lifeline_) = make_pipe();
  theirs.output = moved_up(std::move(theirs.output));
  theirs.lifeline = moved_up(std::move(theirs.lifeline));
  set_nonblocking(output_.get());
  return theirs;
}

WorkerProcess WorkerProcess::forked(const std::function<pid_t(const WorkerEnds&)>& fork) {
  WorkerProcess worker;
  WorkerEnds theirs = worker.make_ends();
  std::tie(worker.status_, theirs.status) = make_pipe();
  worker.pid_ = fork(theirs);
  // Its pid is no other process's: whoever forked it has not reaped it.
  worker.process_ = watch_process(worker.pid_);
  return worker;
}

WorkerProcess WorkerProcess::start(std::vector<std::string> argv, const std::vector<std::string>& environment) {
  WorkerProcess worker;
  const WorkerEnds theirs = worker.make_ends();

  SpawnActions actions;
  ::posix_spawn_file_actions_addopen(&actions.files, 0, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions.files, theirs.output.get(), 1);
  ::posix_spawn_file_actions_adddup2(&actions.files, theirs.output.get(), 2);
  ::posix_spawn_file_actions_adddup2(&actions.files, theirs.socket.get(), kSocketFd);
  ::posix_spawn_file_actions_adddup2(&actions.files, theirs.lifeline.get(), kLifelineFd);
  sigset_t none;
  sigset_t usual;
  sigemptyset(&none);
  sigfillset(&usual);
  sigdelset(&usual, SIGKILL);
  sigdelset(&usual, SIGSTOP);
  ::posix_spawnattr_setsigmask(&actions.attributes, &none);
  ::posix_spawnattr_setsigdefault(&actions.attributes, &usual);
  ::posix_spawnattr_setpgroup(&actions.attributes, 0);
  ::posix_spawnattr_setflags(&actions.attributes,
                             POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);

  argv.push_back(std::to_string(kSocketFd));
  argv.push_back(std::to_string(kLifelineFd));
  const int problem = ::posix_spawnp(&worker.pid_, argv.front().c_str(), &actions.files, &actions.attributes,
                                     exec_list(argv).data(), exec_list(environment).data());
  if (problem != 0) {
    worker.pid_ = 0;
    throw Error(ErrorKind::runtime, "cannot start '" + argv.front() + "': " + std::strerror(problem),
                "check that it is installed and on PATH");
  }
  return worker;
}

WorkerProcess::WorkerProcess(WorkerProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, 0)),
      socket_(std::move(other.socket_)),
      output_(std::move(other.output_)),
      lifeline_(std::move(other.lifeline_)),
      status_(std::move(other.status_)),
      process_(std::move(other.process_)) {}

WorkerProcess& WorkerProcess::operator=(WorkerProcess&& other) noexcept {
  if (this != &other) {
    (void)end(0);
    pid_ = std::exchange(other.pid_, 0);
    socket_ = std::move(other.socket_);
    output_ = std::move(other.output_);
    lifeline_ = std::move(other.lifeline_);
    status_ = std::move(other.status_);
    process_ = std::move(other.process_);
  }
  return *this;
}

std::string WorkerProcess::end(double grace_s) noexcept {
  if (pid_ <= 0) return {};
  const pid_t pid = std::exchange(pid_, 0);
  socket_.reset();
  const bool ended = wait_for(pid, grace_s);
  // Its children are in its group, whether it has ended or not. Where nobody keeps its pid from being another's, the lifeline
  // alone ends it.
  if (keeps_pid(pid)) (void)::kill(-pid, SIGKILL);
  lifeline_.reset();
  if (!ended) (void)wait_for(pid, kEndOfKilled_s);
  const std::string how = how_it_ended(pid);
  output_.reset();
  status_.reset();
  process_.reset();
  return how.empty() ? "has ended" : how + (ended ? "" : " (by us)");
}

bool WorkerProcess::wait_for(pid_t pid, double limit_s) const noexcept {
  const MonotonicClock clock;
  const Nanoseconds deadline = clock.now() + static_cast<Nanoseconds>(limit_s * 1e9);
  while (true) {
    const Nanoseconds left = deadline - clock.now();
    if (process_) {
      pollfd end{process_.get(), POLLIN, 0};
      const int limit_ms = static_cast<int>(std::max<Nanoseconds>(0, left) / kMillisecond);
      if (::poll(&end, 1, limit_ms) == 1) return true;
    } else {
      siginfo_t info{};
      const int got = ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT);
      if ((got == 0 && info.si_pid == pid) || (got < 0 && errno != EINTR)) return true;
      const timespec sleep{0, 2'000'000};
      if (left > 0) ::nanosleep(&sleep, nullptr);
    }
    if (left <= 0) return false;
  }
}

bool WorkerProcess::keeps_pid(pid_t pid) const noexcept {
  if (status_) {
    pollfd forker{status_.get(), POLLIN, 0};
    (void)::poll(&forker, 1, 0);
    return (forker.revents & POLLHUP) == 0;  // it reaps the worker when we have closed our end
  }
  siginfo_t info{};
  return ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0;  // ours to reap
}

std::string WorkerProcess::how_it_ended(pid_t pid) const noexcept {
  if (status_) {
    pollfd said{status_.get(), POLLIN, 0};
    uint32_t status = 0;
    if (::poll(&said, 1, kStatus_ms) != 1 || ::read(status_.get(), &status, sizeof status) != sizeof status) return {};
    return describe_status(static_cast<int>(status));
  }
  int status = 0;
  // Somebody else in this process may reap all children, and knows how this one ended.
  return ::waitpid(pid, &status, WNOHANG) == pid ? describe_status(status) : std::string();
}

std::vector<std::string> worker_environment() {
  std::vector<std::string> out;
  bool threads_are_said = false;
  for (std::string& entry : inherited_environment()) {
    const std::string_view name = std::string_view(entry).substr(0, entry.find('='));
    threads_are_said = threads_are_said || name == "OMP_NUM_THREADS";
    if (!is_launcher_variable(name)) out.push_back(std::move(entry));
  }
  if (!threads_are_said) out.emplace_back("OMP_NUM_THREADS=1");
  return out;
}

}  // namespace penstock
