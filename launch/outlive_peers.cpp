// The program's half of outlive_peers.h: linked into `penstock` itself, whose symbols come before the C library's.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>

#include "transport/outlive_peers.h"

namespace {

// The end is published last, and 0 until then: no address lies below it.
struct Code {
  std::atomic<uintptr_t> begin{0};
  std::atomic<uintptr_t> end{0};

  bool holds(const void* caller) const {
    const auto address = reinterpret_cast<uintptr_t>(caller);
    return address < end.load(std::memory_order_acquire) && address >= begin.load(std::memory_order_relaxed);
  }
  void set(const PenstockCode& code) {
    begin.store(code.begin, std::memory_order_relaxed);
    end.store(code.end, std::memory_order_release);  // publishes the beginning to every thread that calls from there
  }
};
Code tcp_code;
Code event_code;

bool is_meant(const void* caller) {
  return tcp_code.holds(caller);
}

bool says_gone(int error) {
  switch (error) {
    case ECONNRESET:
    case ECONNREFUSED:
    case ECONNABORTED:
    case EPIPE:
    case ENOTCONN:
    case ETIMEDOUT:
    case EHOSTUNREACH:
    case EHOSTDOWN:
    case ENETUNREACH:
    case ENETDOWN: return true;
    default: return false;
  }
}

// From now on nobody is at the other end: what is written stays in the kernel, and nothing comes. The end that would
// read it is kept open, and never read, until the process ends.
bool park(int fd) {
  sockaddr_storage name{};
  socklen_t length = sizeof name;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&name), &length) != 0) return false;
  if (name.ss_family != AF_INET && name.ss_family != AF_INET6) return false;
  int ends[2] = {-1, -1};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) return false;
  const bool parked = ::dup3(ends[0], fd, O_CLOEXEC) == fd;
  (void)::close(ends[0]);
  if (!parked) (void)::close(ends[1]);
  return parked;
}

// What a call gave, or "later" where the other end is gone.
long unless_gone(int fd, const void* caller, long result, bool nothing_is_an_end) {
  const bool gone = result < 0 ? says_gone(errno) : nothing_is_an_end && result == 0;
  if (!gone || !is_meant(caller)) return result;
  const int error = errno;
  if (!park(fd)) {
    errno = error;
    return result;
  }
  errno = EAGAIN;
  return -1;
}

}  // namespace

extern "C" {

void penstock_outlive_peers(PenstockCode tcp, PenstockCode events) {
  tcp_code.set(tcp);
  event_code.set(events);
}

// Open MPI's, of a communicator and an error code.
int ompi_mpi_abort(void* communicator, int code) {
  if (event_code.holds(__builtin_return_address(0))) return 0;
  using Abort = int (*)(void*, int);
  const auto abort = reinterpret_cast<Abort>(::dlsym(RTLD_NEXT, "ompi_mpi_abort"));
  if (abort == nullptr) ::_exit(code);
  return abort(communicator, code);
}

ssize_t readv(int fd, const iovec* parts, int count) {
  return unless_gone(fd, __builtin_return_address(0), ::syscall(SYS_readv, fd, parts, count), true);
}

ssize_t writev(int fd, const iovec* parts, int count) {
  return unless_gone(fd, __builtin_return_address(0), ::syscall(SYS_writev, fd, parts, count), false);
}

int connect(int fd, const sockaddr* address, socklen_t length) {
  const auto result = static_cast<int>(::syscall(SYS_connect, fd, address, length));
  if (result == 0 || !says_gone(errno) || !is_meant(__builtin_return_address(0))) return result;
  const int error = errno;
  if (park(fd)) return 0;  // it is connected, to nobody
  errno = error;
  return result;
}

// How a connection that was begun came out.
int getsockopt(int fd, int level, int name, void* value, socklen_t* length) noexcept {
  const auto result = static_cast<int>(::syscall(SYS_getsockopt, fd, level, name, value, length));
  if (result != 0 || level != SOL_SOCKET || name != SO_ERROR || !is_meant(__builtin_return_address(0))) return result;
  auto* error = static_cast<int*>(value);
  if (says_gone(*error) && park(fd)) *error = 0;
  return result;
}
}
