#include "transport/unix_socket.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "runtime/base/descriptor_message.h"
#include "runtime/base/error.h"

namespace penstock {
namespace {

// Connections that wait to be accepted: all ranks of a node may call at once. The kernel allows somaxconn at most.
constexpr int kBacklog = 4096;

// A packet must fit the socket's send buffer (208 KiB by default), with room for the kernel's book-keeping.
constexpr size_t kPartBytes = 96 * 1024;
constexpr size_t kLeastPartBytes = 1024;
// First byte of every packet: is there more of this message?
constexpr std::byte kLast{0};
constexpr std::byte kMore{1};

sockaddr_un abstract_address(const std::string& name, socklen_t& length) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (name.size() + 1 > sizeof address.sun_path) {
    throw Error(ErrorKind::usage, "socket name too long: '" + name + "'", "shorten the job's name");
  }
  std::memcpy(address.sun_path + 1, name.data(), name.size());  // the leading zero makes it abstract
  length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

UniqueFd new_socket() {
  UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) throw Error(ErrorKind::runtime, system_error_text("cannot create a socket"), "raise ulimit -n");
  return fd;
}

Nanoseconds now_ns() {
  return MonotonicClock().now();
}

bool wait_fd(int fd, short events, Nanoseconds deadline) {
  for (;;) {
    const Nanoseconds left = deadline - now_ns();
    if (left <= 0) return false;
    pollfd item{fd, events, 0};
    const int count = ::poll(&item, 1, static_cast<int>(left / kMillisecond + 1));
    if (count > 0) return true;
    if (count < 0 && errno != EINTR) return false;
  }
}

// The send buffer may be smaller than usual (net.core.wmem_default); a part that does not fit is EMSGSIZE for ever.
size_t part_bytes_of(int fd) {
  int buffer = 0;
  socklen_t length = sizeof buffer;
  if (::getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buffer, &length) != 0 || buffer <= 0) return kPartBytes;
  return std::clamp(static_cast<size_t>(buffer) / 2, kLeastPartBytes, kPartBytes);
}

}  // namespace

PacketSocket::PacketSocket(UniqueFd fd)
    : fd_(std::move(fd)), part_bytes_(part_bytes_of(fd_.get())), closed_(false), buffer_(kPartBytes + 1) {}

void PacketSocket::close() noexcept {
  closed_ = true;
  pending_.clear();
  partial_.clear();
  partial_fd_.reset();
  fd_.reset();
}

// The kernel says POLLOUT while it refuses for want of memory, too: to wait for that without a limit would keep a core busy.
short PacketSocket::poll_events() const noexcept {
  const bool may_go_on = !refused_since_ns_ || refused_limit_ns_ != kNoLimit;
  return static_cast<short>(pending_.empty() || !may_go_on ? POLLIN : POLLIN | POLLOUT);
}

// False when the kernel's buffer is full.
bool PacketSocket::write_one(std::span<const std::byte> part, int fd) {
  DescriptorMessage message(part, std::span(&fd, fd >= 0 ? 1 : 0));
  for (;;) {
    if (::sendmsg(fd_.get(), message.header(), MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) {
      refused_since_ns_.reset();
      return true;
    }
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return false;
    const bool hung_up = errno == EPIPE || errno == ECONNRESET;
    if (errno == ENOBUFS || errno == ENOMEM || errno == ETOOMANYREFS) {
      if (!refused_since_ns_) refused_since_ns_ = now_ns();
      if (now_ns() - *refused_since_ns_ < refused_limit_ns_) return false;
    }
    pending_.clear();
    send_failed_ = true;
    // After a hang-up reads may still find what the peer sent before, and then its end. With any other error the peer may
    // live on, and this end has to hang up: poll() tells the owner, who finds a lost peer.
    if (!hung_up) ::shutdown(fd_.get(), SHUT_RDWR);
    return true;
  }
}

void PacketSocket::send(std::span<const std::byte> bytes, int fd) {
  if (closed_ || send_failed_) return;
  if (bytes.size() > kMaxMessage) {
    throw Error(ErrorKind::usage, "message of " + std::to_string(bytes.size()) + " bytes is too large");
  }
  size_t offset = 0;
  bool first = true;
  do {
    const size_t count = std::min(part_bytes_, bytes.size() - offset);
    const bool last = offset + count == bytes.size();
    std::vector<std::byte> part(count + 1);
    part[0] = last ? kLast : kMore;
    if (count > 0) std::memcpy(part.data() + 1, bytes.data() + offset, count);
    const int part_fd = first ? fd : -1;
    if (!pending_.empty() || !write_one(part, part_fd)) {
      // The caller may close its descriptor before the kernel takes ours, hence the copy.
      pending_.push_back({std::move(part), part_fd >= 0 ? duplicate(part_fd) : UniqueFd()});
    }
    if (send_failed_) return;
    offset += count;
    first = false;
  } while (offset < bytes.size());
}

void PacketSocket::write_pending() {
  while (!pending_.empty()) {
    if (!write_one(pending_.front().bytes, pending_.front().fd.get())) return;
    if (send_failed_) return;
    pending_.pop_front();
  }
}

bool PacketSocket::receive(Packet& packet) {
  while (!closed_) {
    DescriptorMessage message{std::span<std::byte>(buffer_)};
    const ssize_t count = ::recvmsg(fd_.get(), message.header(), MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
    if (count < 0 && errno == ECONNRESET) {
      // The peer hung up without reading all that we sent. Linux tells that first; what it said before comes next.
      send_failed_ = true;
      pending_.clear();
      continue;
    }
    // Before anything else: an empty packet looks like a hang-up, and may bring descriptors all the same.
    if (count >= 0)
      if (UniqueFd fd = message.take_last()) partial_fd_ = std::move(fd);
    if (count <= 0) {
      close();
      return false;
    }
    partial_.insert(partial_.end(), buffer_.begin() + 1, buffer_.begin() + count);
    if (partial_.size() > most_bytes_) {
      close();
      return false;
    }
    if (buffer_[0] == kLast) {
      packet.bytes = std::exchange(partial_, {});
      packet.fd = std::move(partial_fd_);
      return true;
    }
  }
  return false;
}

bool PacketSocket::receive_until(Packet& packet, Nanoseconds timeout_ns) {
  const Nanoseconds deadline = now_ns() + timeout_ns;
  for (;;) {
    write_pending();
    if (receive(packet)) return true;
    if (closed_ || !wait_fd(fd_.get(), poll_events(), deadline)) return false;
  }
}

bool PacketSocket::flush(Nanoseconds timeout_ns) {
  const Nanoseconds deadline = now_ns() + timeout_ns;
  for (;;) {
    if (closed_ || send_failed_) return false;
    write_pending();
    if (pending_.empty()) return !send_failed_;
    if (!wait_fd(fd_.get(), POLLOUT, deadline)) return false;
  }
}

UniqueFd listen_abstract(const std::string& name) {
  UniqueFd fd = new_socket();
  socklen_t length = 0;
  const sockaddr_un address = abstract_address(name, length);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 || ::listen(fd.get(), kBacklog) != 0) {
    throw Error(ErrorKind::runtime, system_error_text("cannot listen on the socket '@" + name + "'"),
                "is another job of the same name running on this node?");
  }
  return fd;
}

UniqueFd accept_one(int listening_fd) {
  for (;;) {
    const int fd = ::accept4(listening_fd, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) return UniqueFd(fd);
    if (errno != EINTR && errno != ECONNABORTED) return {};
  }
}

std::vector<PacketSocket> accept_strangers(int listening_fd) {
  std::vector<PacketSocket> strangers;
  for (size_t i = 0; i < kMostStrangers; ++i) {
    UniqueFd fd = accept_one(listening_fd);
    if (!fd) break;
    if (!peer_is_us(fd.get())) continue;
    strangers.emplace_back(std::move(fd)).limit_messages(PacketSocket::kMaxHello);
  }
  return strangers;
}

UniqueFd try_connect_abstract(const std::string& name) {
  UniqueFd fd = new_socket();
  socklen_t length = 0;
  const sockaddr_un address = abstract_address(name, length);
  const bool connected = ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) == 0;
  if (connected && peer_is_us(fd.get())) return fd;
  const int why = connected ? EPERM : errno;  // another user's: it is to hear no token
  fd.reset();
  errno = why;  // connect_abstract() tells which of them are worth another try
  return {};
}

UniqueFd connect_abstract(const std::string& name, Nanoseconds timeout_ns, const AskedToEnd& asked_to_end) {
  const Nanoseconds deadline = now_ns() + timeout_ns;
  for (;;) {
    if (UniqueFd fd = try_connect_abstract(name)) return fd;
    if ((errno != ECONNREFUSED && errno != EAGAIN && errno != EINTR) || now_ns() > deadline) {
      throw Error(ErrorKind::peer_lost, system_error_text("nobody answers on the socket '@" + name + "'"),
                  "is the rank that opens this receiver still running?");
    }
    end_if_asked(asked_to_end);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

std::pair<UniqueFd, UniqueFd> packet_socket_pair() {
  int fds[2] = {-1, -1};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) != 0) {
    throw Error(ErrorKind::runtime, system_error_text("cannot create a socket pair"), "raise ulimit -n");
  }
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

int peer_pid(int fd) {
  ucred peer{};
  socklen_t length = sizeof peer;
  return ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 ? peer.pid : 0;
}

bool peer_is_us(int fd) {
  ucred peer{};
  socklen_t length = sizeof peer;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) return false;
  return peer.uid == ::geteuid() || peer.uid == 0;
}

}  // namespace penstock
