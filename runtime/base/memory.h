// Owners for descriptors and for memory shared between processes.
//
//   SharedMemory chunk_buffers = SharedMemory::create("penstock-chunk-buffers", bytes);  // memfd, preallocated, sealed
//   chunk_buffers.seal_future_writes();                                   // later mappings are read-only
//   SharedMemory view = SharedMemory::open(std::move(fd), Access::read);  // at the other end of a socket
//   SharedMemory own = SharedMemory::create_private("chunk_buffers", bytes);  // that nobody else will map
//
// There is never a name in /dev/shm: a memfd lives exactly as long as its descriptors and mappings, so nothing can leak
// or collide. Pages are allocated at creation, so that a full machine gives an Error here and not SIGBUS later; seals
// keep the other side from shrinking the file under us.
// Private memory is in huge pages where the kernel gives them for the asking
//   (/sys/kernel/mm/transparent_hugepage/enabled is not `never`): another process that copies out of it (MPI, within a
//   node) has 512 times fewer pages to look up. Children of fork() do not have it, so that nothing is copied for them.
// Ownership: move-only; the mapping ends with the object. Thread-safety: as for any owner.
// Failure: Error(runtime) with the system's reason.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <utility>

namespace penstock {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) noexcept : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~UniqueFd() { reset(); }

  int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }
  int release() noexcept { return std::exchange(fd_, -1); }
  void reset() noexcept;
  UniqueFd duplicate() const;

 private:
  int fd_ = -1;
};

// Another descriptor of the same, close-on-exec; Error(runtime) where there are no more.
UniqueFd duplicate(int fd);

// Readable once that process has ended (pidfd_open(2)); none where there is no such process, or the kernel lacks the call.
UniqueFd watch_process(int pid);

// "cannot map 12 bytes: Cannot allocate memory", from errno.
std::string system_error_text(const std::string& what);

class SharedMemory {
 public:
  enum class Access { read, read_write };

  SharedMemory() = default;
  SharedMemory(SharedMemory&& other) noexcept { *this = std::move(other); }
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory();

  // `between`: called now and then meanwhile, as gigabytes may take seconds.
  static SharedMemory create(const std::string& name, size_t bytes, const std::function<void()>& between = {});
  static SharedMemory create_private(const std::string& name, size_t bytes);  // fd(): -1
  // Maps a received descriptor; refuses one that is smaller than `bytes` or could still shrink.
  static SharedMemory open(UniqueFd fd, size_t bytes, Access access);

  void seal_future_writes();
  std::byte* data() const noexcept { return data_; }
  size_t size() const noexcept { return size_; }
  int fd() const noexcept { return fd_.get(); }
  explicit operator bool() const noexcept { return data_ != nullptr; }

 private:
  UniqueFd fd_;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace penstock
