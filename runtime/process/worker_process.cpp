#include "runtime/process/worker_process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
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

WorkerProcess WorkerProcess::start(std::vector<std::string> argv, const std::vector<std::string>& environment) {
  auto [ours, theirs] = worker_sockets();
  auto [output, output_end] = make_pipe();
  auto [lifeline_end, lifeline] = make_pipe();
  output_end = moved_up(std::move(output_end));
  lifeline_end = moved_up(std::move(lifeline_end));
  set_nonblocking(output.get());

  SpawnActions actions;
  ::posix_spawn_file_actions_addopen(&actions.files, 0, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions.files, output_end.get(), 1);
  ::posix_spawn_file_actions_adddup2(&actions.files, output_end.get(), 2);
  ::posix_spawn_file_actions_adddup2(&actions.files, theirs.get(), kSocketFd);
  ::posix_spawn_file_actions_adddup2(&actions.files, lifeline_end.get(), kLifelineFd);
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
  pid_t pid = 0;
  const int problem = ::posix_spawnp(&pid, argv.front().c_str(), &actions.files, &actions.attributes,
                                     exec_list(argv).data(), exec_list(environment).data());
  if (problem != 0) {
    throw Error(ErrorKind::runtime, "cannot start '" + argv.front() + "': " + std::strerror(problem),
                "check that it is installed and on PATH");
  }
  WorkerProcess worker;
  worker.pid_ = pid;
  worker.socket_ = std::move(ours);
  worker.output_ = std::move(output);
  worker.lifeline_ = std::move(lifeline);
  return worker;
}

WorkerProcess::WorkerProcess(WorkerProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, 0)),
      socket_(std::move(other.socket_)),
      output_(std::move(other.output_)),
      lifeline_(std::move(other.lifeline_)) {}

WorkerProcess& WorkerProcess::operator=(WorkerProcess&& other) noexcept {
  if (this != &other) {
    (void)end(0);
    pid_ = std::exchange(other.pid_, 0);
    socket_ = std::move(other.socket_);
    output_ = std::move(other.output_);
    lifeline_ = std::move(other.lifeline_);
  }
  return *this;
}

std::string WorkerProcess::end(double grace_s) noexcept {
  if (pid_ <= 0) return {};
  const pid_t pid = std::exchange(pid_, 0);
  socket_.reset();
  const MonotonicClock clock;
  const Nanoseconds deadline = clock.now() + static_cast<Nanoseconds>(grace_s * 1e9);
  int status = 0;
  pid_t got = 0;
  while ((got = ::waitpid(pid, &status, WNOHANG)) == 0 && clock.now() < deadline) {
    const timespec sleep{0, 2'000'000};
    ::nanosleep(&sleep, nullptr);
  }
  // Its children are in its group, whether it has ended or not.
  (void)::kill(-pid, SIGKILL);
  const bool killed = got == 0;
  while (killed && (got = ::waitpid(pid, &status, 0)) < 0 && errno == EINTR) {
  }
  output_.reset();
  lifeline_.reset();
  // Somebody else in this process reaps all children, and knows how this one ended.
  if (got != pid) return "has ended";
  return describe_status(status) + (killed ? " (by us)" : "");
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
