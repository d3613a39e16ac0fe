// Unix-domain sockets that carry whole messages and descriptors (SOCK_SEQPACKET, abstract namespace: nothing to
// unlink).
//
//   UniqueFd listening = listen_abstract("penstock/0/ab12/p0");
//   UniqueFd there = connect_abstract("penstock/0/ab12/p0", timeout_ns);
//   PacketSocket socket(std::move(there));
//   socket.send(bytes, fd);                 // queued where the kernel's buffer is full; never blocks
//   while (socket.receive(packet)) ...      // whole messages, of any size up to kMaxMessage
//
// Messages larger than a kernel packet are cut and put together again here. A descriptor travels with the first part.
// Names are only a meeting point: whoever connects is checked by peer_is_us() (same user) and by the job's token.
// Thread-safety: one thread per PacketSocket. Failure: closed() after a hang-up, and after an error with which nothing can
//   be sent any more; what the kernel refuses for want of memory is tried again, for 10 s or as limit_refusals() says.
//   Error(usage): too large.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/memory.h"
#include "transport/asked_to_end.h"

namespace penstock {

struct Packet {
  std::vector<std::byte> bytes;
  UniqueFd fd;
};

class PacketSocket {
 public:
  static constexpr size_t kMaxMessage = size_t{64} << 20;
  static constexpr size_t kMaxHello = 4096;
  static constexpr Nanoseconds kNoLimit = INT64_MAX;

  PacketSocket() = default;
  explicit PacketSocket(UniqueFd fd);

  void send(std::span<const std::byte> bytes, int fd = -1);
  bool receive(Packet& packet);  // false: nothing whole there now, or closed
  void write_pending();          // call when poll() says POLLOUT
  // A peer that sends a longer one is hung up on: what strangers say is kept until it is whole, and they may be many.
  void limit_messages(size_t bytes) noexcept { most_bytes_ = bytes; }
  // How long the kernel may refuse what is sent before this end hangs up. To the peer a hang-up is this process's death, so
  // between ranks, which miss each other when they are silent, there is no limit: call write_pending() now and then, because
  // poll_events() do not wait for the end of a refusal.
  void limit_refusals(Nanoseconds limit_ns) noexcept { refused_limit_ns_ = limit_ns; }
  bool has_pending() const noexcept { return !pending_.empty(); }
  bool closed() const noexcept { return closed_; }
  int fd() const noexcept { return fd_.get(); }
  short poll_events() const noexcept;  // POLLIN, and POLLOUT while something is pending that the kernel may take
  // Blocks until a message, a hang-up (false) or the deadline (false); for simple clients.
  bool receive_until(Packet& packet, Nanoseconds timeout_ns);
  bool flush(Nanoseconds timeout_ns);  // false: the peer is gone or too slow
  void close() noexcept;

 private:
  struct Part {
    std::vector<std::byte> bytes;
    UniqueFd fd;
  };
  bool write_one(std::span<const std::byte> part, int fd);

  UniqueFd fd_;
  size_t part_bytes_ = 0;  // of a message in one packet at most
  size_t most_bytes_ = kMaxMessage;
  Nanoseconds refused_limit_ns_ = 10 * kSecond;
  bool closed_ = true;
  bool send_failed_ = false;                     // the peer hung up; what it sent before may still be read
  std::optional<Nanoseconds> refused_since_ns_;  // the kernel has had no memory, or no room for descriptors
  std::deque<Part> pending_;
  std::vector<std::byte> partial_;
  UniqueFd partial_fd_;
  std::vector<std::byte> buffer_;
};

UniqueFd listen_abstract(const std::string& name);
// Empty when nobody waits, or no descriptor is left: strangers that have taken them must not end the job. That there are
// enough for a job is seen to when it starts (process/descriptor_limit.h).
UniqueFd accept_one(int listening_fd);
// Who waits there, is peer_is_us(), and has still to say who it is, in kMaxHello bytes; some at a time, because a flood of
// them must not keep the job's own waiting.
std::vector<PacketSocket> accept_strangers(int listening_fd);
// So many of them are kept, and the oldest hung up on where more come: descriptors are for the job.
inline constexpr size_t kMostStrangers = 64;
// Retries while nobody listens yet, until the timeout; Error(peer_lost) naming the socket afterwards.
UniqueFd connect_abstract(const std::string& name, Nanoseconds timeout_ns, const AskedToEnd& asked_to_end = {});
// One try; empty when nobody listens there (errno ECONNREFUSED), when the backlog is full (EAGAIN), or when it is another
// user's socket (EPERM). Error(runtime) where no socket can be made.
UniqueFd try_connect_abstract(const std::string& name);
std::pair<UniqueFd, UniqueFd> packet_socket_pair();
int peer_pid(int fd);     // SO_PEERCRED: of the process that connected; 0 where it cannot be seen from here
bool peer_is_us(int fd);  // SO_PEERCRED: the same user, or root

}  // namespace penstock
