#include "runtime/base/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "runtime/base/available_memory.h"
#include "runtime/base/error.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace penstock {

void UniqueFd::reset() noexcept {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

UniqueFd UniqueFd::duplicate() const {
  return penstock::duplicate(fd_);
}

UniqueFd duplicate(int fd) {
  const int copy = ::fcntl(fd, F_DUPFD_CLOEXEC, 3);
  if (copy < 0) throw Error(ErrorKind::runtime, system_error_text("cannot duplicate a descriptor"), "raise ulimit -n");
  return UniqueFd(copy);
}

UniqueFd watch_process(int pid) {
#ifdef SYS_pidfd_open
  if (pid > 0) return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
#endif
  return {};
}

std::string system_error_text(const std::string& what) {
  return what + ": " + std::strerror(errno);
}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  if (this != &other) {
    if (data_ != nullptr) ::munmap(data_, size_);
    fd_ = std::move(other.fd_);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

SharedMemory::~SharedMemory() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

namespace {

constexpr size_t kHugePage = size_t{2} << 20;

Error no_memory(int code, const std::string& name, size_t bytes) {
  return {ErrorKind::runtime,
          "cannot allocate " + std::to_string(bytes) + " bytes of memory for '" + name + "': " + std::strerror(code) +
              (code == EFBIG    ? " (over this process's limit on the size of files, ulimit -f, which counts here)"
               : code == EMFILE ? " (this process's limit on open files, ulimit -n)"
                                : ""),
          "lower loader.memory_gb, loader.prefetch or trainer.hold"};
}

// The kernel would go on until its OOM killer ends some process: neither a memfd nor a mapping has a limit of its own.
// Looking takes the kernel longer than giving less than this.
void refuse_more_than_there_is(const std::string& name, size_t bytes, size_t taken) {
  constexpr size_t kWorthLooking = size_t{1} << 20;
  if (bytes >= kWorthLooking && bytes - taken > available_memory()) throw no_memory(ENOMEM, name, bytes);
}

// Takes memory now, so that what is missing is an error here, and not a SIGBUS or the OOM killer later. Ranks of a node do so
// at the same time, and each alone may find enough for itself: hence piece by piece, and before each a look whether there
// is room for the rest.
template <class Take>
void take_by_pieces(const std::string& name, size_t bytes, const Take& take,
                    const std::function<void()>& between = {}) {
  constexpr size_t kPiece = size_t{32} << 20;
  for (size_t at = 0; at < bytes; at += kPiece) {
    if (at > 0 && between) between();
    refuse_more_than_there_is(name, bytes, at);
    if (const int code = take(at, std::min(kPiece, bytes - at)); code != 0) throw no_memory(code, name, bytes);
  }
}

// Pages now, not while the first batches are made.
// 0, or the error's number.
int populate(std::byte* memory, size_t bytes, size_t page) {
#ifdef MADV_POPULATE_WRITE
  if (::madvise(memory, bytes, MADV_POPULATE_WRITE) == 0) return 0;
  if (errno != EINVAL) return errno;  // else the kernel is older than 5.14
#endif
  for (size_t at = 0; at < bytes; at += page) memory[at] = std::byte{0};
  return 0;
}

}  // namespace

SharedMemory SharedMemory::create(const std::string& name, size_t bytes, const std::function<void()>& between) {
  SharedMemory memory;
  memory.fd_ = UniqueFd(::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory.fd_) throw no_memory(errno, name, bytes);
  const auto take = [&](size_t at, size_t count) {
    int code = 0;
    do {
      code = ::posix_fallocate(memory.fd_.get(), static_cast<off_t>(at), static_cast<off_t>(count));
    } while (code == EINTR);
    return code;
  };
  take_by_pieces(name, bytes, take, between);
  if (::fcntl(memory.fd_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    throw Error(ErrorKind::runtime, system_error_text("cannot seal shared memory '" + name + "'"));
  }
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.fd_.get(), 0);
  if (data == MAP_FAILED) {
    throw Error(ErrorKind::runtime, system_error_text("cannot map shared memory '" + name + "'"));
  }
  memory.data_ = static_cast<std::byte*>(data);
  memory.size_ = bytes;
  return memory;
}

SharedMemory SharedMemory::create_private(const std::string& name, size_t bytes) {
  // Huge pages lie at multiples of their size: what is mapped beyond `bytes` to get there goes back.
  const size_t slack = bytes >= kHugePage ? kHugePage : 0;
  void* const mapped = ::mmap(nullptr, bytes + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) throw no_memory(errno, name, bytes);
  auto* const begin = static_cast<std::byte*>(mapped);
  const size_t before = slack == 0 ? 0 : (kHugePage - reinterpret_cast<uintptr_t>(begin) % kHugePage) % kHugePage;
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t kept = (bytes + page - 1) / page * page;
  if (before > 0) ::munmap(begin, before);
  if (before + kept < bytes + slack) ::munmap(begin + before + kept, bytes + slack - before - kept);
  SharedMemory memory;
  memory.data_ = begin + before;
  memory.size_ = bytes;
  // Both are optional: without them pages are small, or fork() has a little more to do.
  (void)::madvise(memory.data_, bytes, MADV_HUGEPAGE);
  (void)::madvise(memory.data_, bytes, MADV_DONTFORK);
  take_by_pieces(name, bytes, [&](size_t at, size_t count) { return populate(memory.data_ + at, count, page); });
  return memory;
}

SharedMemory SharedMemory::open(UniqueFd fd, size_t bytes, Access access) {
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) {
    throw Error(ErrorKind::peer_lost, system_error_text("cannot examine received shared memory"));
  }
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || static_cast<size_t>(status.st_size) < bytes) {
    throw Error(ErrorKind::peer_lost, "received shared memory is not sealed or smaller than announced",
                "all ranks must run the same version of penstock");
  }
  const int protection = access == Access::read ? PROT_READ : PROT_READ | PROT_WRITE;
  void* data = ::mmap(nullptr, bytes, protection, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) throw Error(ErrorKind::runtime, system_error_text("cannot map received shared memory"));
  SharedMemory memory;
  memory.fd_ = std::move(fd);
  memory.data_ = static_cast<std::byte*>(data);
  memory.size_ = bytes;
  return memory;
}

void SharedMemory::seal_future_writes() {
  // Kernels before 5.1 lack this seal; the mapping of the other side is read-only either way.
  (void)::fcntl(fd_.get(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE);
}

}  // namespace penstock
