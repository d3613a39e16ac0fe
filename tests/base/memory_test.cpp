// Descriptors are owned once; shared memory cannot be shrunk under its reader, nor written through a descriptor that
// was handed out for reading.
#include "runtime/base/memory.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <vector>

#include "runtime/base/error.h"
#include "tests/support/error_of.h"

namespace penstock {
namespace {

bool is_open(int fd) {
  return ::fcntl(fd, F_GETFD) >= 0;
}

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
  SharedMemory chunk_buffers = SharedMemory::create("penstock-test", 4096);
  chunk_buffers.seal_future_writes();
  chunk_buffers.data()[5] = std::byte{7};  // the owner's mapping goes on writing
  const int fd = ::fcntl(chunk_buffers.fd(), F_DUPFD_CLOEXEC, 3);
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

// From /proc/self/smaps: what the kernel was asked for the mapping that begins at `data`.
std::string flags_of(const std::byte* data) {
  std::ifstream maps("/proc/self/smaps");
  std::ostringstream begin;
  begin << std::hex << reinterpret_cast<uintptr_t>(data) << '-';
  bool found = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.find('-') < line.find(' ') && line.find(':') > line.find(' ')) found = line.rfind(begin.str(), 0) == 0;
    if (found && line.rfind("VmFlags:", 0) == 0) return line + ' ';
  }
  return {};
}

TEST_CASE("private memory is there at once, wants huge pages, and no child has it") {
  for (const size_t bytes : {size_t{1}, size_t{5000}, size_t{2} << 20, (size_t{5} << 20) + 100}) {
    INFO(bytes);
    const SharedMemory memory = SharedMemory::create_private("penstock-test", bytes);
    CHECK(memory.fd() == -1);
    REQUIRE(memory.size() == bytes);
    if (bytes >= size_t{2} << 20) CHECK(reinterpret_cast<uintptr_t>(memory.data()) % (size_t{2} << 20) == 0);
    const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
    std::vector<unsigned char> resident((bytes + page - 1) / page);
    REQUIRE(::mincore(memory.data(), bytes, resident.data()) == 0);
    CHECK(std::all_of(resident.begin(), resident.end(), [](unsigned char one) { return (one & 1) != 0; }));
    CHECK(memory.data()[bytes - 1] == std::byte{0});
    memory.data()[bytes - 1] = std::byte{1};
    const std::string flags = flags_of(memory.data());
    // A kernel may know no huge pages.
    if (::access("/sys/kernel/mm/transparent_hugepage", F_OK) == 0) CHECK(flags.find(" hg ") != std::string::npos);
    CHECK(flags.find(" dc ") != std::string::npos);
  }
}

TEST_CASE("more memory than there is gives an error with a remedy, not a signal later") {
  try {
    const SharedMemory huge = SharedMemory::create("penstock-test", size_t{1} << 60);
    FAIL("an exbibyte was allocated");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::runtime);
    CHECK(error.remedy().find("memory_gb") != std::string::npos);
  }
  CHECK(error_of([] { (void)SharedMemory::create_private("penstock-test", size_t{1} << 60); }).kind() ==
        ErrorKind::runtime);
}

}  // namespace
}  // namespace penstock
