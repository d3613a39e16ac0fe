#include "runtime/process/helper.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/wire.h"
#include "runtime/process/launcher.h"
#include "runtime/process/placement.h"
#include "runtime/process/session_folder.h"
#include "runtime/process/tree.h"

namespace penstock {
namespace {

using Steady = std::chrono::steady_clock;

// A sequenced-packet socket takes packets up to its send buffer; environments can be larger, so they travel in parts.
constexpr size_t kPartBytes = 32 << 10;
// Processes stuck in the kernel cannot be ended by anyone; after this long the helper says so and leaves.
constexpr double kKillLimit_s = 10;

enum Packet : uint8_t { kReady = 1, kSpecPart, kSpecEnd, kSignal, kStop, kStarted, kStartFailed, kExited, kEnded };

Steady::duration seconds(double s) {
  return std::chrono::duration_cast<Steady::duration>(std::chrono::duration<double>(std::clamp(s, 0.0, 1e6)));
}

int milliseconds_until(Steady::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Steady::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 1'000'000));
}

std::vector<std::byte> encode(const ProgramSpec& spec) {
  WireWriter out;
  for (const auto* list : {&spec.argv, &spec.environment}) {
    out.u32(static_cast<uint32_t>(list->size()));
    for (const std::string& entry : *list) out.text(entry);
  }
  out.text(spec.folder);
  out.u32(static_cast<uint32_t>(spec.cpus.size()));
  for (const int cpu : spec.cpus) out.i32(cpu);
  out.u8(spec.keep_stdin ? 1 : 0);
  out.u8(spec.relay_output ? 1 : 0);
  out.f64(spec.grace_s);
  return out.take();
}

ProgramSpec decode(std::span<const std::byte> bytes) {
  WireReader in(bytes, "program to start");
  ProgramSpec spec;
  for (auto* list : {&spec.argv, &spec.environment}) {
    for (uint32_t left = in.u32(); left > 0; --left) list->push_back(in.text());
  }
  spec.folder = in.text();
  for (uint32_t left = in.u32(); left > 0; --left) spec.cpus.push_back(in.i32());
  spec.keep_stdin = in.u8() != 0;
  spec.relay_output = in.u8() != 0;
  spec.grace_s = in.f64();
  in.end();
  return spec;
}

bool set_affinity(const std::vector<int>& cpus) {
  const int highest = *std::max_element(cpus.begin(), cpus.end());
  cpu_set_t* set = CPU_ALLOC(static_cast<size_t>(highest) + 1);
  if (set == nullptr) return false;
  const size_t size = CPU_ALLOC_SIZE(static_cast<size_t>(highest) + 1);
  CPU_ZERO_S(size, set);
  for (const int cpu : cpus) CPU_SET_S(static_cast<size_t>(cpu), size, set);
  const bool done = sched_setaffinity(0, size, set) == 0;
  const int why = errno;
  CPU_FREE(set);
  errno = why;
  return done;
}

bool same_file(int a, int b) {
  struct stat one {};
  struct stat other {};
  return fstat(a, &one) == 0 && fstat(b, &other) == 0 && one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

void replace_stdin() {
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  if (null > 0) {
    dup2(null, STDIN_FILENO);
    close(null);
  }
}

// Closed standard streams would give their numbers to our sockets, and the program would write into those.
void fill_standard_streams() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (fcntl(fd, F_GETFD) < 0 && errno == EBADF && open("/dev/null", O_RDWR) < 0) return;
  }
}

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

// One output of the program on its way to ours. Never blocks: it reads only with nothing left to write, writes only
// what a writable pipe surely takes (PIPE_BUF), and drops everything once our reader is gone.
class Relay {
 public:
  // Makes the program's end; -1 where that fails, and then the program writes to ours directly.
  int open_for(int to) {
    to_ = to;
    std::array<int, 2> ends{-1, -1};
    if (isatty(to) != 0) {
      ends[0] = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
      const char* name = ends[0] >= 0 && grantpt(ends[0]) == 0 && unlockpt(ends[0]) == 0 ? ptsname(ends[0]) : nullptr;
      if (name != nullptr) ends[1] = open(name, O_RDWR | O_NOCTTY | O_CLOEXEC);
      termios mode{};
      if (ends[1] >= 0 && tcgetattr(ends[1], &mode) == 0) {
        mode.c_oflag &= ~static_cast<tcflag_t>(OPOST);  // our own terminal does that
        mode.c_lflag &= ~static_cast<tcflag_t>(ECHO);
        tcsetattr(ends[1], TCSANOW, &mode);
      }
      if (ends[1] < 0 && ends[0] >= 0) close(std::exchange(ends[0], -1));
    }
    if (ends[1] < 0 && pipe2(ends.data(), O_CLOEXEC) != 0) return -1;
    from_ = ends[0];
    return ends[1];
  }
  void close_now() {
    if (from_ >= 0) close(std::exchange(from_, -1));
    pending_.clear();
  }
  pollfd wanted() const {
    if (from_ < 0) return {-1, 0, 0};
    return pending_.empty() ? pollfd{from_, POLLIN, 0} : pollfd{to_, POLLOUT, 0};
  }
  // After poll said that the wanted descriptor is ready.
  void move() {
    if (from_ < 0) return;
    if (pending_.empty()) {
      std::array<char, PIPE_BUF> buffer;
      const ssize_t got = read(from_, buffer.data(), buffer.size());
      if (got < 0 && errno == EINTR) return;
      if (got <= 0) {  // end of file; a pty says EIO
        close(std::exchange(from_, -1));
      } else if (!reader_gone_) {
        pending_.assign(buffer.data(), static_cast<size_t>(got));
      }
      return;
    }
    const ssize_t put = write(to_, pending_.data(), pending_.size());
    if (put < 0 && (errno == EINTR || errno == EAGAIN)) return;
    reader_gone_ = put < 0;
    pending_.erase(0, put < 0 ? pending_.size() : static_cast<size_t>(put));
  }

 private:
  int from_ = -1;
  int to_ = -1;
  std::string pending_;
  bool reader_gone_ = false;
};

// ---- the helper's side: one thread, a loop over poll
// ------------------------------------------------------------------

class HelperLoop {
 public:
  HelperLoop(int socket, const Helper::Options& options)
      : socket_(socket), folder_(options.session_folder), rank_(getppid()), launcher_(open_pid(options.launcher)) {
    sigset_t wanted;
    sigemptyset(&wanted);
    sigaddset(&wanted, SIGCHLD);
    sigaddset(&wanted, SIGTERM);
    signals_ = signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK);
  }

  // Returns the helper's exit status.
  int run() {
    WireWriter ready;
    ready.u8(signals_ >= 0 ? kReady : kEnded);
    send(ready);
    if (signals_ < 0) return 1;
    try {
      while (!over_) step();
    } catch (...) {  // out of memory, or nonsense on the socket: end as after a hang-up, at once
    }
    const bool clean = end_descendants(kKillLimit_s, [this](pid_t pid, int status) { reaped(pid, status); });
    flush(1.0);
    if (launcher_gone_) signal_rank(SIGKILL);
    folder_.release();
    WireWriter ended;
    ended.u8(kEnded);
    ended.u8(clean ? 1 : 0);
    send(ended);
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
      begin_end(grace_s_);
    }
    if (ending_) {
      reap();
      over_ = Steady::now() >= deadline_ || descendants(getpid()).empty();
      // A rank without its launcher has the grace too, to end by itself.
      if (launcher_gone_ && !hung_up_) over_ = Steady::now() >= deadline_;
    }
  }

  // What the program has written so far, before we say that it ended; a reader that stalls is not waited for.
  void flush(double limit_s) {
    const auto limit = Steady::now() + seconds(limit_s);
    while (Steady::now() < limit) {
      std::array<pollfd, 2> fds{{relays_[0].wanted(), relays_[1].wanted()}};
      if (poll(fds.data(), fds.size(), 0) <= 0) return;
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
    WireWriter out;
    out.u8(kExited);
    out.i64(pid);
    out.i32(status);
    send(out);
  }

  void take_packet() {
    std::array<std::byte, kPartBytes + 64> buffer;
    const ssize_t got = recv(socket_, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) {
      hung_up_ = true;
      begin_end(grace_s_);
      return;
    }
    WireReader in(std::span<const std::byte>(buffer.data(), static_cast<size_t>(got)), "helper command");
    switch (in.u8()) {
      case kSpecPart:
      case kSpecEnd: {
        const auto part = in.raw(in.left());
        spec_.insert(spec_.end(), part.begin(), part.end());
        if (static_cast<uint8_t>(buffer[0]) == kSpecEnd) start(decode(std::exchange(spec_, {})));
        break;
      }
      case kSignal:
        pass_on(in.i32());
        break;
      case kStop:
        begin_end(in.f64());
        break;
      default:
        break;
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
    const auto deadline = Steady::now() + seconds(grace_s);
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

  static int open_pid(pid_t pid) {
#ifdef SYS_pidfd_open
    if (pid > 1) return static_cast<int>(syscall(SYS_pidfd_open, pid, 0U));
#endif
    return -1;
  }

  void start(const ProgramSpec& spec) {
    grace_s_ = spec.grace_s;
    std::array<int, 2> status_pipe{-1, -1};
    if (ending_ || program_ >= 0) {
      fail(ending_ ? "the job is ending" : "a program is running already");
      return;
    }
    if (pipe2(status_pipe.data(), O_CLOEXEC) != 0) {
      fail(std::string("cannot start '") + spec.argv[0] + "': no pipe: " + std::strerror(errno));
      return;
    }
    const pid_t helper = getpid();
    std::array<int, 2> outputs{-1, -1};
    if (spec.relay_output) {
      for (Relay& relay : relays_) relay.close_now();
      outputs[0] = relays_[0].open_for(STDOUT_FILENO);
      outputs[1] = same_file(STDOUT_FILENO, STDERR_FILENO) ? outputs[0] : relays_[1].open_for(STDERR_FILENO);
    }
    const pid_t pid = fork();
    if (pid == 0) become(spec, helper, status_pipe[1], outputs);
    const int why = errno;
    close(status_pipe[1]);
    if (outputs[0] >= 0) close(outputs[0]);
    if (outputs[1] >= 0 && outputs[1] != outputs[0]) close(outputs[1]);
    if (pid < 0) {
      close(status_pipe[0]);
      fail(std::string("cannot start '") + spec.argv[0] + "': no process: " + std::strerror(why));
      return;
    }
    program_ = pid;
    exec_ = status_pipe[0];
    replace_stdin();  // one reader of the rank's input only
  }

  // In the child: everything between fork and exec. What fails is told through the pipe that exec would have closed.
  [[noreturn]] static void become(const ProgramSpec& spec, pid_t helper, int status_pipe,
                                  const std::array<int, 2>& outputs) {
    const auto give_up = [&](const std::string& what) {
      const std::string text = what + ": " + std::strerror(errno);
      [[maybe_unused]] const ssize_t written = write(status_pipe, text.data(), text.size());
      _exit(127);
    };
    setsid();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != helper) _exit(127);  // it died before the line above
    if (!spec.keep_stdin) replace_stdin();
    if (outputs[0] >= 0) dup2(outputs[0], STDOUT_FILENO);
    if (outputs[1] >= 0) dup2(outputs[1], STDERR_FILENO);
    if (!spec.cpus.empty() && !set_affinity(spec.cpus)) give_up("cannot run on cores " + cpu_list_text(spec.cpus));
    if (!spec.folder.empty() && chdir(spec.folder.c_str()) != 0) give_up("cannot enter '" + spec.folder + "'");
    std::vector<char*> argv;
    for (const std::string& word : spec.argv) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    std::vector<char*> environment;
    for (const std::string& entry : spec.environment) environment.push_back(const_cast<char*>(entry.c_str()));
    environment.push_back(nullptr);
    environ = environment.data();  // so that execvp looks in the program's PATH
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    execvp(argv[0], argv.data());
    give_up("cannot start '" + spec.argv[0] + "'");
    _exit(127);
  }

  void finish_exec() {
    std::string text;
    std::array<char, 1024> buffer;
    for (;;) {
      const ssize_t got = read(exec_, buffer.data(), buffer.size());
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) break;
      text.append(buffer.data(), static_cast<size_t>(got));
    }
    close(std::exchange(exec_, -1));
    if (!text.empty()) {
      program_ = -1;
      fail(text);
      return;
    }
    WireWriter out;
    out.u8(kStarted);
    out.i64(program_);
    send(out);
  }

  void fail(const std::string& text) {
    WireWriter out;
    out.u8(kStartFailed);
    out.text(text.substr(0, 4096));
    send(out);
  }

  void send(const WireWriter& packet) {
    ::send(socket_, packet.bytes().data(), packet.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  int socket_;
  SessionFolder folder_;
  pid_t rank_;
  int launcher_;  // a pidfd, close-on-exec by nature; readable when the launcher is gone
  bool launcher_gone_ = false;
  int signals_ = -1;
  int exec_ = -1;       // reads why exec failed; end of file when it did not
  pid_t program_ = -1;  // running, or being started
  std::array<Relay, 2> relays_;
  std::vector<std::byte> spec_;
  double grace_s_ = ProgramSpec{}.grace_s;
  bool hung_up_ = false;
  bool ending_ = false;
  bool over_ = false;
  Steady::time_point deadline_{};
};

[[noreturn]] void helper_main(int socket, const Helper::Options& options) {
  setsid();
  prctl(PR_SET_NAME, "penstock-helper");
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);
  close_all_but(socket);
  int status = 1;
  try {
    status = HelperLoop(socket, options).run();
  } catch (...) {
  }
  _exit(status);
}

}  // namespace

// ---- the rank's side
// --------------------------------------------------------------------------------------------------

Helper Helper::fork_now() {
  const char* folder = std::getenv(kSessionFolderVariable);
  const bool launched = detect_launcher(current_environment()).kind != LauncherKind::none;
  return fork_now(Options{folder != nullptr ? folder : "", launched ? getppid() : 0});
}

Helper Helper::fork_now(const Options& options) {
  fill_standard_streams();
  std::array<int, 2> ends{-1, -1};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    throw Error(ErrorKind::runtime, std::string("cannot make a socket pair for the helper: ") + std::strerror(errno));
  }
  // Inherits what the helper would leave behind, were it killed.
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  const pid_t pid = fork();
  if (pid == 0) {
    close(ends[0]);
    helper_main(ends[1], options);
  }
  const int why = errno;
  close(ends[1]);
  if (pid < 0) {
    close(ends[0]);
    throw Error(ErrorKind::runtime, std::string("cannot fork the helper: ") + std::strerror(why),
                "check the limit on processes (ulimit -u) and free memory");
  }
  // Nothing waits without a deadline: a helper that stops reading is an error in 10 s, not a hang.
  const timeval limit{10, 0};
  setsockopt(ends[0], SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  Helper helper(ends[0], pid);
  // Only once it is in its own session is it safe from signals meant for the rank.
  pollfd ready{ends[0], POLLIN, 0};
  uint8_t first = 0;
  if (poll(&ready, 1, 10'000) != 1 || recv(ends[0], &first, 1, MSG_DONTWAIT) != 1 || first != kReady) {
    kill(pid, SIGKILL);
    throw Error(ErrorKind::runtime, "the helper process did not start");
  }
  return helper;
}

Helper::Helper(Helper&& other) noexcept : fd_(std::exchange(other.fd_, -1)), pid_(std::exchange(other.pid_, -1)) {}

Helper& Helper::operator=(Helper&& other) noexcept {
  if (this != &other) {
    hang_up();
    fd_ = std::exchange(other.fd_, -1);
    pid_ = std::exchange(other.pid_, -1);
  }
  return *this;
}

Helper::~Helper() {
  hang_up();
}

void Helper::hang_up() noexcept {
  if (fd_ >= 0) close(std::exchange(fd_, -1));
  if (pid_ > 0) waitpid(pid_, nullptr, WNOHANG);
}

bool Helper::send_packet(const std::vector<std::byte>& packet) {
  if (fd_ < 0) return false;
  ssize_t sent = 0;
  do {
    sent = send(fd_, packet.data(), packet.size(), MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(packet.size());
}

void Helper::start(const ProgramSpec& spec) {
  if (spec.argv.empty()) throw Error(ErrorKind::usage, "no program to start", "name one after --");
  for (const int cpu : spec.cpus) {
    if (cpu < 0) throw Error(ErrorKind::usage, "core " + std::to_string(cpu) + " cannot be");
  }
  const std::vector<std::byte> bytes = encode(spec);
  for (size_t at = 0; at < bytes.size(); at += kPartBytes) {
    const size_t size = std::min(kPartBytes, bytes.size() - at);
    WireWriter out;
    out.u8(at + size == bytes.size() ? kSpecEnd : kSpecPart);
    out.raw(bytes.data() + at, size);
    if (!send_packet(out.bytes())) {
      throw Error(ErrorKind::runtime, "cannot start '" + spec.argv[0] + "': the helper process is gone",
                  "was process " + std::to_string(pid_) + " (penstock-helper) killed?");
    }
  }
}

// A helper that is gone shows as the report `ended`; there is nothing to add here.
void Helper::signal(int number) {
  WireWriter out;
  out.u8(kSignal);
  out.i32(number);
  send_packet(out.bytes());
}

void Helper::stop(double grace_s) {
  WireWriter out;
  out.u8(kStop);
  out.f64(std::isfinite(grace_s) ? grace_s : 0);
  send_packet(out.bytes());
}

std::optional<HelperReport> Helper::next_report() {
  if (fd_ < 0) return std::nullopt;
  std::array<std::byte, 8192> buffer;
  ssize_t got = 0;
  do {
    got = recv(fd_, buffer.data(), buffer.size(), MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  if (got < 0 && errno == EAGAIN) return std::nullopt;
  HelperReport report;
  if (got <= 0) {
    // Without its last word the helper was killed. What it looked after is ours now.
    report.clean = false;
    const pid_t lost = std::exchange(pid_, -1);
    close(std::exchange(fd_, -1));
    end_descendants(kKillLimit_s);
    report.text = "the helper process " + std::to_string(lost) + " was killed";
    return report;
  }
  WireReader in(std::span<const std::byte>(buffer.data(), static_cast<size_t>(got)), "helper report");
  switch (in.u8()) {
    case kStarted:
      report.kind = HelperReport::Kind::started;
      report.pid = static_cast<pid_t>(in.i64());
      break;
    case kStartFailed:
      report.kind = HelperReport::Kind::start_failed;
      report.text = in.text();
      break;
    case kExited:
      report.kind = HelperReport::Kind::exited;
      report.pid = static_cast<pid_t>(in.i64());
      report.status = in.i32();
      break;
    default: {
      report.clean = in.left() > 0 && in.u8() != 0;
      close(std::exchange(fd_, -1));
      // It said its last word and is on its way out.
      waitpid(std::exchange(pid_, -1), nullptr, 0);
      break;
    }
  }
  return report;
}

std::optional<HelperReport> Helper::wait_report(double limit_s) {
  const auto deadline = Steady::now() + seconds(limit_s);
  for (;;) {
    if (auto report = next_report()) return report;
    if (fd_ < 0) return std::nullopt;
    const int wait_ms = milliseconds_until(deadline);
    if (wait_ms == 0) return std::nullopt;
    pollfd readable{fd_, POLLIN, 0};
    poll(&readable, 1, wait_ms);
  }
}

}  // namespace penstock
