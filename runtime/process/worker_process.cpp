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
constexpr int kUnknownStatus = -1;
constexpr double kEndOfKilled_s =
    60;  // a process that is killed in the middle of a slow disk's work goes when that is done

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
      status_(std::move(other.status_)) {}

WorkerProcess& WorkerProcess::operator=(WorkerProcess&& other) noexcept {
  if (this != &other) {
    (void)end(0);
    pid_ = std::exchange(other.pid_, 0);
    socket_ = std::move(other.socket_);
    output_ = std::move(other.output_);
    lifeline_ = std::move(other.lifeline_);
    status_ = std::move(other.status_);
  }
  return *this;
}

std::string WorkerProcess::end(double grace_s) noexcept {
  if (pid_ <= 0) return {};
  const pid_t pid = std::exchange(pid_, 0);
  socket_.reset();
  std::optional<int> status = wait_for(pid, grace_s);
  const bool killed = !status;
  // Its children are in its group, whether it has ended or not. The lifeline ends a worker whose forker is gone, too, and
  // whose pid may be another's by now.
  if (!(status_ && status == kUnknownStatus)) (void)::kill(-pid, SIGKILL);
  lifeline_.reset();
  if (killed) status = wait_for(pid, kEndOfKilled_s);
  output_.reset();
  status_.reset();
  // Somebody else in this process reaps all children, and knows how this one ended; or its forker is gone.
  if (!status || status == kUnknownStatus) return "has ended";
  return describe_status(*status) + (killed ? " (by us)" : "");
}

std::optional<int> WorkerProcess::wait_for(pid_t pid, double limit_s) const noexcept {
  const MonotonicClock clock;
  const Nanoseconds deadline = clock.now() + static_cast<Nanoseconds>(limit_s * 1e9);
  while (true) {
    const Nanoseconds left = deadline - clock.now();
    if (status_) {
      pollfd said{status_.get(), POLLIN, 0};
      const int ready = ::poll(&said, 1, static_cast<int>(std::max<Nanoseconds>(0, left) / kMillisecond));
      uint32_t status = 0;
      if (ready == 1)
        return ::read(status_.get(), &status, sizeof status) == sizeof status ? static_cast<int>(status)
                                                                              : kUnknownStatus;
    } else {
      int status = 0;
      const pid_t got = ::waitpid(pid, &status, WNOHANG);
      if (got == pid) return status;
      if (got < 0 && errno != EINTR) return kUnknownStatus;
      const timespec sleep{0, 2'000'000};
      if (left > 0) ::nanosleep(&sleep, nullptr);
    }
    if (left <= 0) return std::nullopt;
  }
}

std::vector<std::string> worker_environment() {
  std::vector<std::string> out;
  bool threads_reported = false;
  for (std::string& entry : inherited_environment()) {
    const std::string_view name = std::string_view(entry).substr(0, entry.find('='));
    threads_reported = threads_reported || name == "OMP_NUM_THREADS";
    if (!is_launcher_variable(name)) out.push_back(std::move(entry));
  }
  if (!threads_reported) out.emplace_back("OMP_NUM_THREADS=1");
  return out;
}

}  // namespace penstock
