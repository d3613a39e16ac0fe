#include "runtime/process/helper.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <set>
#include <span>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/switches.h"
#include "runtime/base/thread_annotations.h"
#include "runtime/base/wire.h"
#include "runtime/process/helper_loop.h"
#include "runtime/process/helper_protocol.h"
#include "runtime/process/launcher.h"
#include "runtime/process/session_folder.h"
#include "runtime/process/standard_streams.h"
#include "runtime/process/tree.h"

namespace penstock {
namespace {

// A process without MPI has a helper for each of its trainers: when one is killed, the others and their programs go on.
class LivingHelpers {
 public:
  void add(pid_t pid) PENSTOCK_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    pids_.insert(pid);
  }
  void remove(pid_t pid) PENSTOCK_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    pids_.erase(pid);
  }
  std::set<pid_t> all() PENSTOCK_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return pids_;
  }

 private:
  Mutex mutex_;
  std::set<pid_t> pids_ PENSTOCK_GUARDED_BY(mutex_);
};

LivingHelpers& living_helpers() {
  static LivingHelpers helpers;
  return helpers;
}

constexpr int kReadyLimit_s = 60;

}  // namespace

Helper Helper::fork_now() {
  const bool launched = detect_launcher(current_environment()).kind != LauncherKind::none;
  return fork_now(Options{environment_value(kSessionFolderVariable), launched ? getppid() : 0});
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
    helper_main(ends[1], options.session_folder, options.launcher);
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
  living_helpers().add(pid);
  // Only once it is in its own session is it safe from signals meant for the rank. Where hundreds of ranks start on a few
  // cores, each gets a hundredth of one.
  pollfd ready{ends[0], POLLIN, 0};
  uint8_t first = 0;
  int answers = 0;
  do {
    answers = poll(&ready, 1, kReadyLimit_s * 1000);
  } while (answers < 0 && errno == EINTR);
  if (answers != 1) {
    ::kill(pid, SIGKILL);
    throw Error(ErrorKind::runtime,
                "the helper process (" + std::to_string(pid) + ") did not get ready within " +
                    std::to_string(kReadyLimit_s) + " s",
                "start fewer ranks on this machine, or end what else keeps its cores busy");
  }
  if (recv(ends[0], &first, 1, MSG_DONTWAIT) != 1 || static_cast<HelperPacket>(first) != HelperPacket::ready) {
    ::kill(pid, SIGKILL);
    throw Error(ErrorKind::runtime, "the helper process (" + std::to_string(pid) + ") ended before it was ready",
                "check free memory, and what the kernel's log says of it (dmesg)");
  }
  return helper;
}

Helper::Helper(Helper&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), pid_(std::exchange(other.pid_, -1)), asked_(other.asked_) {}

Helper& Helper::operator=(Helper&& other) noexcept {
  if (this != &other) {
    hang_up();
    fd_ = std::exchange(other.fd_, -1);
    pid_ = std::exchange(other.pid_, -1);
    asked_ = other.asked_;
  }
  return *this;
}

Helper::~Helper() {
  hang_up();
}

void Helper::hang_up() noexcept {
  if (fd_ >= 0) close(std::exchange(fd_, -1));
  if (pid_ <= 0) return;
  resume();
  living_helpers().remove(pid_);
  waitpid(pid_, nullptr, WNOHANG);
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
  for (const std::vector<std::byte>& packet : spec_packets(spec)) {
    if (!send_packet(packet)) {
      throw Error(ErrorKind::runtime, "cannot start '" + spec.argv[0] + "': the helper process is gone",
                  "was process " + std::to_string(pid_) + " (penstock-helper) killed?");
    }
  }
}

// A helper that is gone shows as the report `ended`; there is nothing to add here.
void Helper::signal(int number) {
  send_packet(helper_packet(HelperPacket::signal, number));
}

void Helper::stop(double grace_s) {
  send_packet(helper_packet(HelperPacket::stop, std::isfinite(grace_s) ? grace_s : 0));
  resume();
}

bool Helper::ask() {
  if (asked_) return false;
  asked_ = send_packet(helper_packet(HelperPacket::ask));
  return true;
}

void Helper::resume() noexcept {
  if (pid_ > 0) ::kill(pid_, SIGCONT);
}

void Helper::kill() noexcept {
  // The number is its own as long as its end of the socket is open.
  pollfd socket{fd_, 0, 0};
  if (fd_ >= 0 && pid_ > 0 && poll(&socket, 1, 0) == 0) ::kill(pid_, SIGKILL);
}

std::optional<HelperReport> Helper::next_report() {
  if (fd_ < 0) return std::nullopt;
  std::array<std::byte, 8192> buffer;
  ssize_t got = 0;
  // A helper that ends with a word of ours unread (a second stop) resets the connection. That is told once, and before its
  // own last words, which can be read behind it.
  bool reset = false;
  do {
    got = recv(fd_, buffer.data(), buffer.size(), MSG_DONTWAIT);
  } while (got < 0 && (errno == EINTR || (errno == ECONNRESET && !std::exchange(reset, true))));
  if (got < 0 && errno == EAGAIN) return std::nullopt;
  HelperReport report;
  if (got <= 0) {
    // Without its last word the helper was killed. What it looked after is ours now.
    report.clean = false;
    const pid_t lost = std::exchange(pid_, -1);
    close(std::exchange(fd_, -1));
    living_helpers().remove(lost);
    end_descendants(kKillLimit_s, {}, living_helpers().all());
    report.text = "the helper process " + std::to_string(lost) + " was killed";
    return report;
  }
  WireReader in(std::span<const std::byte>(buffer.data(), static_cast<size_t>(got)), "helper report");
  switch (static_cast<HelperPacket>(in.u8())) {
    case HelperPacket::here:
      report.kind = HelperReport::Kind::here;
      asked_ = false;
      break;
    case HelperPacket::started:
      report.kind = HelperReport::Kind::started;
      report.pid = static_cast<pid_t>(in.i64());
      break;
    case HelperPacket::start_failed:
      report.kind = HelperReport::Kind::start_failed;
      report.text = in.text();
      break;
    case HelperPacket::exited:
      report.kind = HelperReport::Kind::exited;
      report.pid = static_cast<pid_t>(in.i64());
      report.status = in.i32();
      break;
    default: {
      report.clean = in.left() > 0 && in.u8() != 0;
      close(std::exchange(fd_, -1));
      // It said its last word and is on its way out.
      living_helpers().remove(pid_);
      waitpid(std::exchange(pid_, -1), nullptr, 0);
      break;
    }
  }
  return report;
}

std::optional<HelperReport> Helper::wait_report(double limit_s) {
  const auto deadline = deadline_after(limit_s);
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
