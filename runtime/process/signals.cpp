#include "runtime/process/signals.h"

#include <pthread.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "runtime/base/error.h"

namespace penstock {

SignalFd::SignalFd(std::initializer_list<int> signals) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : signals) sigaddset(&set, signal);
  const int failed = pthread_sigmask(SIG_BLOCK, &set, &before_);
  if (failed != 0) throw Error(ErrorKind::runtime, std::string("cannot block signals: ") + std::strerror(failed));
  fd_ = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  if (fd_ < 0) {
    const int why = errno;
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    throw Error(ErrorKind::runtime, std::string("cannot make a signalfd: ") + std::strerror(why));
  }
}

SignalFd::~SignalFd() {
  // What is pending and was never asked for must not be delivered, deadly, by the unblocking.
  while (next()) {
  }
  close(fd_);
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

bool SignalFd::has(int signal) const {
  sigset_t arrived;
  sigemptyset(&arrived);
  return sigpending(&arrived) == 0 && sigismember(&arrived, signal) == 1;
}

std::optional<int> SignalFd::next() {
  signalfd_siginfo info{};
  ssize_t got = 0;
  do {
    got = read(fd_, &info, sizeof info);
  } while (got < 0 && errno == EINTR);
  if (got != static_cast<ssize_t>(sizeof info)) return std::nullopt;
  return static_cast<int>(info.ssi_signo);
}

void block_signal_of_writes(int signal) noexcept {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, signal);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

EndRequest::Answer EndRequest::arrived(int signal, Nanoseconds now) noexcept {
  if (signal == kEndAtOnce) return Answer::at_once;
  if (!since_) {
    since_ = now;
    return Answer::in_order;
  }
  return signal != kEndInOrder && now - *since_ >= kSameRequest ? Answer::at_once : Answer::nothing;
}

}  // namespace penstock
