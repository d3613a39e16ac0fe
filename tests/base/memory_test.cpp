// Descriptors are owned once; shared memory cannot be shrunk under its reader, nor written through a descriptor that was
// handed out for reading.
#include "runtime/base/memory.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "runtime/base/error.h"

namespace penstock {
namespace {

bool is_open(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

TEST_CASE("UniqueFd closes exactly once, wherever it moved") {
  const int raw = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  REQUIRE(raw >= 0);
  {
    UniqueFd a(raw);
    UniqueFd b(std::move(a));
    CHECK(b.get() == raw);
    CHECK_FALSE(static_cast<bool>(a));  // NOLINT: the moved-from state is promised
    UniqueFd c;
    c = std::move(b);
    UniqueFd& same = c;
    c = std::move(same);
    CHECK(c.get() == raw);
    CHECK(is_open(raw));
  }
  CHECK_FALSE(is_open(raw));
  UniqueFd d(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const UniqueFd copy = d.duplicate();
  CHECK(copy.get() != d.get());
  CHECK((::fcntl(copy.get(), F_GETFD) & FD_CLOEXEC) != 0);
  const int kept = d.release();
  CHECK_FALSE(static_cast<bool>(d));
  CHECK(is_open(kept));
  ::close(kept);
  CHECK_THROWS_AS(UniqueFd().duplicate(), Error);
}

TEST_CASE("both ends see the same bytes, and the size cannot change") {
  SharedMemory mine = SharedMemory::create("penstock-test", 10000);
  REQUIRE(mine.size() == 10000);
  SharedMemory theirs =
      SharedMemory::open(UniqueFd(::fcntl(mine.fd(), F_DUPFD_CLOEXEC, 3)), 10000, SharedMemory::Access::read_write);
  std::memcpy(mine.data() + 9990, "0123456789", 10);
  CHECK(std::memcmp(theirs.data() + 9990, "0123456789", 10) == 0);
  theirs.data()[0] = std::byte{42};
  CHECK(mine.data()[0] == std::byte{42});
  CHECK(::ftruncate(theirs.fd(), 100) != 0);
  CHECK(errno == EPERM);
  CHECK(::ftruncate(theirs.fd(), 20000) != 0);
  // Pages are there from the start: nothing is left to run out of.
  struct stat status {};
  REQUIRE(::fstat(mine.fd(), &status) == 0);
  CHECK(status.st_blocks * 512 >= 10000);
  SharedMemory moved = std::move(mine);
  CHECK(moved.data()[0] == std::byte{42});
  CHECK(mine.data() == nullptr);  // NOLINT: the moved-from state is promised
}

TEST_CASE("after seal_future_writes a received descriptor maps for reading only") {
  SharedMemory cells = SharedMemory::create("penstock-test", 4096);
  cells.seal_future_writes();
  cells.data()[5] = std::byte{7};  // the owner's mapping goes on writing
  const int fd = ::fcntl(cells.fd(), F_DUPFD_CLOEXEC, 3);
  const SharedMemory reader = SharedMemory::open(UniqueFd(fd), 4096, SharedMemory::Access::read);
  CHECK(reader.data()[5] == std::byte{7});
  CHECK_THROWS_AS(SharedMemory::open(reader.fd() >= 0 ? UniqueFd(::dup(reader.fd())) : UniqueFd(), 4096,
                                     SharedMemory::Access::read_write),
                  Error);
  CHECK(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, reader.fd(), 0) == MAP_FAILED);
  CHECK(::pwrite(reader.fd(), "x", 1, 0) < 0);
  void* later = ::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, reader.fd(), 0);
  REQUIRE(later != MAP_FAILED);
  CHECK(::mprotect(later, 4096, PROT_READ | PROT_WRITE) != 0);
  ::munmap(later, 4096);
}

TEST_CASE("memory that could shrink, or is smaller than announced, is refused") {
  UniqueFd unsealed(::memfd_create("penstock-test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REQUIRE(::ftruncate(unsealed.get(), 4096) == 0);
  const auto kind_of = [](UniqueFd fd, size_t bytes) {
    try {
      SharedMemory::open(std::move(fd), bytes, SharedMemory::Access::read);
    } catch (const Error& error) {
      return error.kind();
    }
    return ErrorKind::usage;  // not refused
  };
  CHECK(kind_of(unsealed.duplicate(), 4096) == ErrorKind::peer_lost);
  const SharedMemory good = SharedMemory::create("penstock-test", 4096);
  CHECK(kind_of(UniqueFd(::dup(good.fd())), 4097) == ErrorKind::peer_lost);
  CHECK(kind_of(UniqueFd(::open("/dev/null", O_RDONLY)), 1) == ErrorKind::peer_lost);
  CHECK(kind_of(UniqueFd(), 1) == ErrorKind::peer_lost);
}

TEST_CASE("more memory than there is gives an error with a remedy, not a signal later") {
  try {
    const SharedMemory huge = SharedMemory::create("penstock-test", size_t{1} << 60);
    FAIL("an exbibyte was allocated");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::runtime);
    CHECK(error.remedy().find("memory_gb") != std::string::npos);
  }
}

}  // namespace
}  // namespace penstock
