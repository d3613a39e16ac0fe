#include "runtime/process/session_folder.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <thread>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/switches.h"
#include "runtime/process/tree.h"

namespace penstock {
namespace {

constexpr const char* kPrefix = "penstock-";

// The process that keeps the folder. `lifeline` ends when the launcher has died.
[[noreturn]] void keep(const std::string& path, int lifeline, double limit_s) {
  setsid();  // what kills the launcher's process group is not meant for us
  prctl(PR_SET_NAME, "penstock-keeper");
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);
  if (const int nowhere = open("/dev/null", O_RDWR); nowhere >= 0) {  // whoever reads our output waits for its end
    for (int fd = 0; fd <= 2; ++fd) dup2(nowhere, fd);
  }
  char nothing = 0;
  while (read(lifeline, &nothing, 1) < 0 && errno == EINTR) {
  }
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kDying{200};  // mpirun goes with the launcher, and may be writing there
  // A rank that mpirun had just started makes the folder anew where it has been removed already, until it notices that
  // mpirun is gone. So the keeper looks again for a while; on a busy machine, where mpirun (by its command line) or ranks
  // (by their environment) still know the folder, for longer.
  constexpr std::chrono::seconds kLooks{3};
  constexpr std::chrono::seconds kLooksAtMost{60};
  const auto begun = Clock::now();
  while (Clock::now() < begun + kLooks || (Clock::now() < begun + kLooksAtMost && any_process_with(path))) {
    std::this_thread::sleep_for(kDying);
    SessionFolder folder(path);
    folder.wait_until_alone(limit_s);
    folder.release();
  }
  _exit(0);
}

std::string random_name() {
  static constexpr char kLetters[] = "abcdefghijklmnopqrstuvwxyz0123456789";
  std::array<uint8_t, 10> bytes{};
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    throw Error(ErrorKind::runtime, std::string("no random bytes from the kernel: ") + std::strerror(errno));
  }
  std::string name = kPrefix;
  for (const uint8_t byte : bytes) name += kLetters[byte % (sizeof kLetters - 1)];
  return name;
}

}  // namespace

std::string session_folder_parent() {
  std::string parent = switches().temporary_folder;
  if (!parent.starts_with('/')) parent = "/tmp";
  while (parent.size() > 1 && parent.back() == '/') parent.pop_back();
  return parent;
}

std::string new_session_folder_name() {
  return session_folder_parent() + "/" + random_name();
}

SessionFolder::SessionFolder(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (path.empty() || path[0] != '/' || path.compare(slash + 1, std::strlen(kPrefix), kPrefix) != 0) return;
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return;
  struct stat info {};
  const bool ours = fstat(fd, &info) == 0 && info.st_uid == geteuid() && (info.st_mode & 077) == 0;
  if (!ours || flock(fd, LOCK_SH | LOCK_NB) != 0) {
    close(fd);
    return;
  }
  path_ = path;
  fd_ = fd;
}

bool SessionFolder::wait_until_alone(double limit_s) noexcept {
  if (fd_ < 0) return true;
  const auto limit = std::chrono::steady_clock::now() + std::chrono::duration<double>(limit_s);
  while (flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    // A failed change of a lock may have dropped the old one.
    flock(fd_, LOCK_SH | LOCK_NB);
    if (std::chrono::steady_clock::now() >= limit) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return true;
}

bool SessionFolder::release() noexcept {
  if (fd_ < 0) return false;
  bool removed = false;
  // Turning a shared lock into an exclusive one fails as long as anybody else holds the folder.
  if (flock(fd_, LOCK_EX | LOCK_NB) == 0) {
    // mpirun may be clearing its own part at this moment: a walk over entries that vanish, or a folder that is filled
    // again in between, fails, and the next one finds the rest.
    for (int attempt = 0; attempt < 50 && !removed; ++attempt) {
      if (attempt > 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      std::error_code problem;
      std::filesystem::remove_all(path_, problem);
      removed = !problem;
    }
  }
  close(std::exchange(fd_, -1));
  return removed;
}

FolderKeeper::FolderKeeper(const std::string& path, double limit_s) noexcept {
  std::array<int, 2> ends{-1, -1};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return;
  pid_ = fork();
  if (pid_ == 0) {
    close(ends[1]);
    keep(path, ends[0], limit_s);
  }
  close(ends[0]);
  lifeline_ = ends[1];
}

void FolderKeeper::dismiss() noexcept {
  // Killed, and not asked to go, so that nobody waits for one that is stopped; if it is there, and its number its own.
  if (pid_ > 0 && waitpid(pid_, nullptr, WNOHANG) == 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  pid_ = -1;
  if (lifeline_ >= 0) close(std::exchange(lifeline_, -1));
}

}  // namespace penstock
