// Whole messages and descriptors over a Unix-domain socket, of any size, without blocking.
#include "transport/unix_socket.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <thread>

#include "runtime/base/error.h"

namespace penstock {
namespace {

std::vector<std::byte> bytes_of(size_t size, unsigned seed) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 31 + seed + i / 251);
  return bytes;
}

struct Pair {
  Pair() {
    auto [first, second] = packet_socket_pair();
    a = PacketSocket(std::move(first));
    b = PacketSocket(std::move(second));
  }
  PacketSocket a;
  PacketSocket b;
};

std::string unique_name() {
  static int count = 0;
  return "penstock-test/" + std::to_string(::getpid()) + "/" + std::to_string(count++);
}

TEST_CASE("sizes around the packet limit come out as they went in") {
  Pair pair;
  constexpr size_t kPart = 96 * 1024;
  unsigned seed = 0;
  for (const size_t size :
       {size_t{0}, size_t{1}, kPart - 1, kPart, kPart + 1, 2 * kPart, 2 * kPart + 1, size_t{1'000'000}}) {
    pair.a.send(bytes_of(size, ++seed));
    Packet packet;
    bool got = false;
    for (int i = 0; i < 1000 && !got; ++i) {
      pair.a.write_pending();
      got = pair.b.receive(packet);
    }
    REQUIRE(got);
    REQUIRE(packet.bytes == bytes_of(size, seed));
    CHECK_FALSE(packet.fd);
  }
}

TEST_CASE("descriptors travel with their message, also through the queue and after the sender closed its own") {
  Pair pair;
  std::vector<ino_t> inodes;
  for (int i = 0; i < 40; ++i) {
    const SharedMemory memory = SharedMemory::create("penstock-test", 4096);
    memory.data()[0] = static_cast<std::byte>(i);
    pair.a.send(bytes_of(50'000, static_cast<unsigned>(i)), memory.fd());  // soon more than the kernel's buffer holds
  }
  CHECK(pair.a.has_pending());
  CHECK((pair.a.poll_events() & POLLOUT) != 0);
  for (int i = 0; i < 40; ++i) {
    Packet packet;
    while (!pair.b.receive(packet)) pair.a.write_pending();
    REQUIRE(packet.bytes == bytes_of(50'000, static_cast<unsigned>(i)));
    REQUIRE(static_cast<bool>(packet.fd));
    CHECK((::fcntl(packet.fd.get(), F_GETFD) & FD_CLOEXEC) != 0);
    const SharedMemory memory = SharedMemory::open(std::move(packet.fd), 4096, SharedMemory::Access::read);
    CHECK(memory.data()[0] == static_cast<std::byte>(i));
  }
  CHECK_FALSE(pair.a.has_pending());
}

TEST_CASE("a message that is too large is refused before anything is sent") {
  Pair pair;
  CHECK_THROWS_AS(pair.a.send(std::vector<std::byte>(PacketSocket::kMaxMessage + 1)), Error);
  Packet packet;
  CHECK_FALSE(pair.b.receive(packet));
  CHECK_FALSE(pair.b.closed());
}

TEST_CASE("a peer that never ends its message is cut off at the limit") {
  auto [raw, other] = packet_socket_pair();
  PacketSocket socket(std::move(other));
  std::vector<std::byte> part(90'000, std::byte{1});  // first byte 1: more follows
  Packet packet;
  size_t sent = 0;
  while (!socket.closed() && sent < 2 * PacketSocket::kMaxMessage) {
    if (::send(raw.get(), part.data(), part.size(), MSG_DONTWAIT | MSG_NOSIGNAL) > 0) sent += part.size();
    REQUIRE_FALSE(socket.receive(packet));
  }
  CHECK(socket.closed());
  CHECK(sent <= PacketSocket::kMaxMessage + 1'000'000);
}

TEST_CASE("a stranger's message is cut off at the limit that is set for it") {
  auto [raw, other] = packet_socket_pair();
  PacketSocket socket(std::move(other));
  socket.limit_messages(PacketSocket::kMaxHello);
  const std::vector<std::byte> part(3'001, std::byte{1});
  Packet packet;
  REQUIRE(::send(raw.get(), part.data(), part.size(), MSG_NOSIGNAL) > 0);
  CHECK_FALSE(socket.receive(packet));
  CHECK_FALSE(socket.closed());
  REQUIRE(::send(raw.get(), part.data(), part.size(), MSG_NOSIGNAL) > 0);
  CHECK_FALSE(socket.receive(packet));
  CHECK(socket.closed());
}

TEST_CASE("descriptors that come with an empty packet, or more than one at a time, do not stay open") {
  const auto open_descriptors = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator{});
  };
  const auto before = open_descriptors();
  for (const size_t bytes : {0u, 1u, 9u}) {
    for (const size_t count : {1u, 2u, 5u}) {
      auto [raw, other] = packet_socket_pair();
      PacketSocket socket(std::move(other));
      const std::vector<std::byte> part(bytes, std::byte{1});
      iovec data{const_cast<std::byte*>(part.data()), part.size()};
      alignas(cmsghdr) char control[CMSG_SPACE(5 * sizeof(int))] = {};
      msghdr header{};
      header.msg_iov = &data;
      header.msg_iovlen = 1;
      header.msg_control = control;
      header.msg_controllen = CMSG_SPACE(count * sizeof(int));
      cmsghdr* const rights = CMSG_FIRSTHDR(&header);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(count * sizeof(int));
      const std::vector<int> sent(count, raw.get());
      std::memcpy(CMSG_DATA(rights), sent.data(), count * sizeof(int));
      REQUIRE(::sendmsg(raw.get(), &header, MSG_NOSIGNAL) >= 0);
      Packet packet;
      CHECK_FALSE(socket.receive(packet));
      CHECK(socket.closed() == (bytes == 0));
    }
  }
  CHECK(open_descriptors() == before);
}

TEST_CASE("receive_until and flush keep their deadlines") {
  Pair pair;
  const MonotonicClock clock;
  Packet packet;
  Nanoseconds begun = clock.now();
  CHECK_FALSE(pair.a.receive_until(packet, 30 * kMillisecond));
  CHECK(clock.now() - begun >= 29 * kMillisecond);
  CHECK_FALSE(pair.a.closed());
  pair.a.send(bytes_of(5'000'000, 1));
  begun = clock.now();
  CHECK_FALSE(pair.a.flush(30 * kMillisecond));
  CHECK(clock.now() - begun < 10 * kSecond);
  std::thread reader([&] {
    Packet all;
    CHECK(pair.b.receive_until(all, 20 * kSecond));
    CHECK(all.bytes == bytes_of(5'000'000, 1));
  });
  CHECK(pair.a.flush(20 * kSecond));
  reader.join();
}

TEST_CASE("a hang-up closes after the last message was read; sending into it is harmless") {
  Pair pair;
  pair.b.send(bytes_of(10, 1));
  pair.a.send(bytes_of(10, 2));  // never read by b
  pair.b.close();
  pair.a.send(bytes_of(10, 3));
  Packet packet;
  REQUIRE(pair.a.receive(packet));
  CHECK(packet.bytes == bytes_of(10, 1));
  CHECK_FALSE(pair.a.receive(packet));
  CHECK(pair.a.closed());
  pair.a.send(bytes_of(10, 4));
  CHECK_FALSE(pair.a.flush(kSecond));
}

TEST_CASE("a small send buffer takes smaller packets") {
  auto [first, second] = packet_socket_pair();
  const int size = 4096;
  REQUIRE(::setsockopt(first.get(), SOL_SOCKET, SO_SNDBUF, &size, sizeof size) == 0);
  PacketSocket a(std::move(first));
  PacketSocket b(std::move(second));
  a.send(bytes_of(300'000, 5));
  Packet packet;
  bool got = false;
  for (int i = 0; i < 10'000 && !got; ++i) {
    a.write_pending();
    got = b.receive(packet);
  }
  REQUIRE(got);
  CHECK(packet.bytes == bytes_of(300'000, 5));
}

// In a process of its own: what root may do is not limited.
TEST_CASE("descriptors that the kernel refuses arrive later, and none is lost; behind a limit this end hangs up") {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const rlimit few{24, 24};
    if (::setrlimit(RLIMIT_NOFILE, &few) != 0 || (::geteuid() == 0 && ::setresuid(65534, 65534, 65534) != 0))
      ::_exit(1);
    const UniqueFd file(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    constexpr int messages = 30;
    Packet packet;
    {
      Pair limited;
      limited.a.limit_refusals(0);
      for (unsigned i = 0; i < messages; ++i) limited.a.send(bytes_of(10, i), file.get());
      while (limited.b.receive(packet)) {
      }
      if (!limited.b.closed()) ::_exit(4);
    }
    Pair pair;
    pair.a.limit_refusals(PacketSocket::kNoLimit);
    for (unsigned i = 0; i < messages; ++i) pair.a.send(bytes_of(10, i), file.get());
    if (!pair.a.has_pending()) ::_exit(2);           // the kernel refused none
    if (pair.a.poll_events() != POLLIN) ::_exit(5);  // else poll() would return at once, again and again
    int arrived = 0;
    for (int i = 0; i < 1000 && arrived < messages; ++i) {
      pair.a.write_pending();
      while (pair.b.receive(packet)) arrived += packet.fd ? 1 : 0;
    }
    ::_exit(arrived == messages ? 0 : 3);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("meeting by name: found late, refused twice, missing by name") {
  const std::string name = unique_name();
  CHECK_THROWS_WITH_AS(connect_abstract(name, 20 * kMillisecond), doctest::Contains(name.c_str()), Error);
  UniqueFd listening;
  std::thread late([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    listening = listen_abstract(name);
  });
  const UniqueFd there = connect_abstract(name, 20 * kSecond);
  late.join();
  CHECK_THROWS_AS(listen_abstract(name), Error);  // taken
  UniqueFd accepted = accept_one(listening.get());
  REQUIRE(static_cast<bool>(accepted));
  CHECK_FALSE(static_cast<bool>(accept_one(listening.get())));
  CHECK(peer_is_us(accepted.get()));
  CHECK(peer_is_us(there.get()));
  CHECK_FALSE(peer_is_us(-1));
  CHECK_THROWS_AS(listen_abstract(std::string(200, 'x')), Error);
}

TEST_CASE("who cannot be taken for want of descriptors waits until there are some") {
  const std::string name = unique_name();
  const UniqueFd listening = listen_abstract(name);
  const UniqueFd waiting = connect_abstract(name, kSecond);
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  const rlimit few{64, before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &few) == 0);
  std::vector<UniqueFd> all;
  for (UniqueFd fd(::dup(0)); fd; fd = UniqueFd(::dup(0))) all.push_back(std::move(fd));
  const size_t without = accept_strangers(listening.get()).size();
  all.clear();
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK(without == 0);
  CHECK(accept_strangers(listening.get()).size() == 1);
}

}  // namespace
}  // namespace penstock
