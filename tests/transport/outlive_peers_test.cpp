// Connections whose other end has died, seen by the code that is meant (here this test's own) and by all other code.
#include "transport/outlive_peers.h"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "runtime/base/memory.h"

namespace penstock {
namespace {

// Everything that this program calls is meant, or nothing.
struct Meant {
  explicit Meant(bool all) { penstock_outlive_peers({0, all ? UINTPTR_MAX : 0}, {0, 0}); }
  ~Meant() { penstock_outlive_peers({0, 0}, {0, 0}); }
};

sockaddr_in here(uint16_t tcp_port = 0) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = tcp_port;
  return address;
}

struct Pair {
  Pair() {
    const UniqueFd listening(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = here();
    socklen_t length = sizeof address;
    REQUIRE(::bind(listening.get(), reinterpret_cast<sockaddr*>(&address), length) == 0);
    REQUIRE(::listen(listening.get(), 1) == 0);
    REQUIRE(::getsockname(listening.get(), reinterpret_cast<sockaddr*>(&address), &length) == 0);
    tcp_port = address.sin_port;
    mine = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    REQUIRE(::connect(mine.get(), reinterpret_cast<const sockaddr*>(&address), length) == 0);
    theirs = UniqueFd(::accept(listening.get(), nullptr, nullptr));
    REQUIRE(theirs);
  }
  UniqueFd mine;
  UniqueFd theirs;
  uint16_t tcp_port = 0;
};

ssize_t read_some(const UniqueFd& fd) {
  std::array<char, 8> bytes{};
  const iovec part{bytes.data(), bytes.size()};
  return ::readv(fd.get(), &part, 1);
}

ssize_t write_some(const UniqueFd& fd, size_t bytes = 8) {
  static std::array<char, 65536> nothing{};
  const iovec part{nothing.data(), bytes};
  return ::writev(fd.get(), &part, 1);
}

bool nothing_happens(const UniqueFd& fd) {
  pollfd readable{fd.get(), POLLIN, 0};
  return ::poll(&readable, 1, 0) == 0;
}

}  // namespace

TEST_CASE("a connection that lives is what it was") {
  const Meant meant(true);
  Pair pair;
  CHECK(write_some(pair.theirs) == 8);
  CHECK(read_some(pair.mine) == 8);
  CHECK(write_some(pair.mine) == 8);
  CHECK(read_some(pair.theirs) == 8);
}

TEST_CASE("who is not meant sees the end") {
  const Meant meant(false);
  Pair pair;
  pair.theirs.reset();
  CHECK(read_some(pair.mine) == 0);
}

TEST_CASE("an end that is read becomes a silence, and what is written waits") {
  const Meant meant(true);
  Pair pair;
  pair.theirs.reset();
  CHECK(read_some(pair.mine) == -1);
  CHECK(errno == EAGAIN);
  CHECK(nothing_happens(pair.mine));
  ssize_t written = 0;
  while (written >= 0) written = write_some(pair.mine, 65536);  // until the kernel has no room
  CHECK(errno == EAGAIN);
  CHECK(nothing_happens(pair.mine));
}

TEST_CASE("so does an end that is met when writing") {
  const Meant meant(true);
  Pair pair;
  REQUIRE(write_some(pair.mine) == 8);  // unread, so that its other end resets the connection
  pair.theirs.reset();
  ssize_t written = 0;
  for (int i = 0; i < 1000 && written >= 0 && !nothing_happens(pair.mine); ++i) written = write_some(pair.mine);
  CHECK(errno == EAGAIN);
  CHECK(nothing_happens(pair.mine));
}

TEST_CASE("where nobody listens any more, somebody seems to, and says nothing") {
  const Meant meant(true);
  const uint16_t closed = Pair().tcp_port;
  const sockaddr_in address = here(closed);
  SUBCASE("told at once") {
    const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    CHECK(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    CHECK(write_some(fd) == 8);
    CHECK(nothing_happens(fd));
  }
  SUBCASE("told later") {
    const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    {
      const Meant none(false);
      const int begun = ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
      REQUIRE((begun == -1 && (errno == EINPROGRESS || errno == ECONNREFUSED)));
      if (errno == ECONNREFUSED) return;  // a loopback that answers within the call
    }
    penstock_outlive_peers({0, UINTPTR_MAX}, {0, 0});
    pollfd done{fd.get(), POLLOUT, 0};
    REQUIRE(::poll(&done, 1, 5000) == 1);
    int error = -1;
    socklen_t length = sizeof error;
    CHECK(::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length) == 0);
    CHECK(error == 0);
    CHECK(nothing_happens(fd));
  }
}

}  // namespace penstock
