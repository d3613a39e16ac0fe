#include "runtime/base/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

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
  const int copy = ::fcntl(fd_, F_DUPFD_CLOEXEC, 3);
  if (copy < 0) throw Error(ErrorKind::runtime, system_error_text("cannot duplicate a descriptor"), "raise ulimit -n");
  return UniqueFd(copy);
}

std::string system_error_text(const std::string& what) { return what + ": " + std::strerror(errno); }

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

SharedMemory SharedMemory::create(const std::string& name, size_t bytes) {
  SharedMemory memory;
  memory.fd_ = UniqueFd(::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory.fd_) throw Error(ErrorKind::runtime, system_error_text("cannot create shared memory '" + name + "'"));
  const auto no_memory = [&] {
    return Error(ErrorKind::runtime,
                 system_error_text("cannot allocate " + std::to_string(bytes) + " bytes of shared memory '" + name +
                                   "'"),
                 "lower loader.memory_gb, loader.prefetch or trainer.hold");
  };
  // The kernel would go on until its OOM killer ends some process: a memfd has no limit of its own.
  if (bytes > available_memory()) {
    errno = ENOMEM;
    throw no_memory();
  }
  // Allocating now turns "no memory left" into an error here instead of a SIGBUS at the first touch.
  int code = 0;
  do {
    code = ::posix_fallocate(memory.fd_.get(), 0, static_cast<off_t>(bytes));
  } while (code == EINTR);
  if (code != 0) {
    errno = code;
    throw no_memory();
  }
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
