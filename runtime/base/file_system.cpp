#include "runtime/base/file_system.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "runtime/base/kept_file.h"
#include "runtime/base/memory.h"

namespace penstock {
namespace {

// Programs of one job make their loaders at about the same time.
constexpr int64_t kWaitForKeptUs = 10'000'000;

// What the process or the machine has no more of, whatever the path.
std::string remedy_of_shortage(int code) {
  switch (code) {
    case EMFILE: return "raise ulimit -n";
    case ENFILE: return "raise the machine's limit on open files (sysctl fs.file-max)";
    case ENOMEM: return "the machine's memory is used up; run less beside the job, or on a larger machine";
    default: return {};
  }
}

[[noreturn]] void fail(const std::string& action, const std::string& path, int code) {
  const std::string message = "cannot " + action + " '" + path + "': " + std::strerror(code);
  std::string remedy = remedy_of_shortage(code);
  if (!remedy.empty()) throw Error(ErrorKind::runtime, message, std::move(remedy));
  switch (code) {
    case EACCES:
    case EPERM: remedy = "give the user who runs the job read permission"; break;
    case ENOENT: remedy = "the file may have been moved or deleted, or be a link that leads nowhere"; break;
    case EIO: remedy = "the disk or network disk reports an error; see the kernel's log (dmesg)"; break;
    case ENOSPC:
    case EDQUOT: remedy = "make room, or write to another disk"; break;
    default: break;
  }
  throw FileError(code, path, message, std::move(remedy));
}

UniqueFd open_retrying(const std::string& action, const std::string& path, int flags, mode_t mode = 0) {
  int fd = -1;
  do {
    fd = ::open(path.c_str(), flags | O_CLOEXEC, mode);
  } while (fd < 0 && errno == EINTR);
  if (fd < 0) fail(action, path, errno);
  return UniqueFd(fd);
}

int64_t modified_of(const struct stat& status) {
  return int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
}

// Fills `into`; false: the file ends before that, after `done` bytes.
bool read_fully(int fd, uint64_t offset, std::span<std::byte> into, const std::string& path, size_t& done) {
  done = 0;
  while (done < into.size()) {
    const ssize_t got = ::pread(fd, into.data() + done, into.size() - done, static_cast<off_t>(offset + done));
    if (got < 0) {
      if (errno == EINTR) continue;
      fail("read", path, errno);
    }
    if (got == 0) return false;
    done += static_cast<size_t>(got);
  }
  return true;
}

[[noreturn]] void ended_early(const std::string& path, uint64_t done, uint64_t size) {
  throw FileError(
      0, path,
      "cannot read '" + path + "': it ended after " + std::to_string(done) + " of " + std::to_string(size) + " bytes",
      "something changes the data set while it is in use");
}

UniqueFd open_regular(const std::string& path, struct stat& status) {
  // O_NONBLOCK matters only for what is not a regular file: opening a pipe would wait for a writer.
  UniqueFd fd =
      is_kept_file(path) ? open_kept_file(path, kWaitForKeptUs) : open_retrying("open", path, O_RDONLY | O_NONBLOCK);
  if (::fstat(fd.get(), &status) != 0) fail("examine", path, errno);
  if (!S_ISREG(status.st_mode)) throw FileError(0, path, "cannot read '" + path + "': it is not a regular file");
  return fd;
}

struct stat status_of(const std::string& path) {
  struct stat status {};
  if (is_kept_file(path)) {
    open_regular(path, status);
  } else if (::stat(path.c_str(), &status) != 0) {
    fail("examine", path, errno);
  }
  return status;
}

class PosixFileReader final : public FileReader {
 public:
  PosixFileReader(std::shared_ptr<const UniqueFd> fd, uint64_t begin, uint64_t size, int64_t modified_ns,
                  const std::string& path)
      : fd_(std::move(fd)), path_(path), begin_(begin), size_(size), modified_ns_(modified_ns) {}

  const std::string& path() const noexcept override { return path_; }
  uint64_t size() const noexcept override { return size_; }
  int64_t modified_ns() const noexcept override { return modified_ns_; }
  void read_at(uint64_t offset, std::span<std::byte> into) const override {
    if (offset > size_ || into.size() > size_ - offset) ended_early(path_, size_, offset + into.size());
    size_t done = 0;
    if (!read_fully(fd_->get(), begin_ + offset, into, path_, done)) ended_early(path_, offset + done, size_);
  }
  int descriptor() const noexcept override { return begin_ == 0 ? fd_->get() : -1; }

 private:
  std::shared_ptr<const UniqueFd> fd_;
  std::string path_;
  uint64_t begin_;  // in the descriptor's file
  uint64_t size_;
  int64_t modified_ns_;
};

class PosixFileSystem final : public FileSystem {
 public:
  bool read_file(const std::string& path, int64_t max_bytes, std::vector<std::byte>& bytes) override {
    bytes.clear();
    struct stat status {};
    const UniqueFd fd = open_regular(path, status);
    if (status.st_size > max_bytes) return false;
    const auto size = static_cast<size_t>(status.st_size);
    bytes.resize(size);
    try {
      size_t done = 0;
      if (!read_fully(fd.get(), 0, bytes, path, done)) ended_early(path, done, size);
    } catch (...) {
      bytes.clear();
      throw;
    }
    return true;
  }

  bool is_the_kernels() const noexcept override { return true; }

  std::unique_ptr<FileReader> open_file(const std::string& path) override {
    struct stat status {};
    auto fd = std::make_shared<const UniqueFd>(open_regular(path, status));
    return std::make_unique<PosixFileReader>(std::move(fd), 0, static_cast<uint64_t>(status.st_size),
                                             modified_of(status), path);
  }

  int64_t file_size(const std::string& path) override { return static_cast<int64_t>(status_of(path).st_size); }

  Directory list_directory(const std::string& path) override {
    UniqueFd fd = open_retrying("open folder", path, O_RDONLY | O_DIRECTORY);
    struct stat status {};
    if (::fstat(fd.get(), &status) != 0) fail("examine folder", path, errno);
    Directory directory;
    directory.id = {static_cast<uint64_t>(status.st_dev), static_cast<uint64_t>(status.st_ino)};

    struct Close {
      void operator()(DIR* stream) const noexcept { ::closedir(stream); }
    };
    const std::unique_ptr<DIR, Close> stream(::fdopendir(fd.get()));
    if (!stream) fail("open folder", path, errno);
    fd.release();  // the stream's now
    for (;;) {
      errno = 0;  // readdir tells an error from the end by errno alone
      const dirent* entry = ::readdir(stream.get());
      if (entry == nullptr) {
        if (errno != 0) fail("list folder", path, errno);
        return directory;
      }
      const char* name = entry->d_name;
      if (std::strcmp(name, ".") == 0 || std::strcmp(name, "..") == 0) continue;
      bool is_directory = entry->d_type == DT_DIR;
      if (entry->d_type == DT_LNK || entry->d_type == DT_UNKNOWN) {
        struct stat target {};
        is_directory = ::fstatat(::dirfd(stream.get()), name, &target, 0) == 0 && S_ISDIR(target.st_mode);
      }
      directory.entries.push_back({name, is_directory});
    }
  }
};

}  // namespace

// What bindings/python/penstock/_worker.py takes for it (MAY_PASS), but for what regular files cannot meet; compared by
// tests/python/own_samples_errors_test.py.
bool may_pass(int code) noexcept {
  switch (code) {
    case EIO:
    case EREMOTEIO:
    case ESTALE:
    case EAGAIN:
    case EBUSY:
    case ETIMEDOUT:
    case ENOMEM:
    case ENOBUFS:
    case EMFILE:
    case ENFILE:
    case ENOLCK:
    case ENETDOWN:
    case ENETUNREACH:
    case ENETRESET:
    case EHOSTDOWN:
    case EHOSTUNREACH:
    case ECONNABORTED:
    case ECONNRESET:
    case ECONNREFUSED:
    case ENOTCONN: return true;
    default: return false;
  }
}

FileFacts FileSystem::examine(const std::string& path) {
  const struct stat status = status_of(path);
  return {static_cast<uint64_t>(status.st_size), modified_of(status)};
}

FileSystem& posix_file_system() {
  static PosixFileSystem files;
  return files;
}

std::unique_ptr<FileReader> make_file_reader(std::shared_ptr<const UniqueFd> fd, uint64_t begin, uint64_t bytes,
                                             const std::string& path) {
  struct stat status {};
  if (::fstat(fd->get(), &status) != 0) fail("examine", path, errno);
  return std::make_unique<PosixFileReader>(std::move(fd), begin, bytes, modified_of(status), path);
}

void write_file(const std::string& path, std::initializer_list<std::span<const std::byte>> parts) {
  UniqueFd fd = open_retrying("create", path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
  for (std::span<const std::byte> part : parts) {
    while (!part.empty()) {
      const ssize_t put = ::write(fd.get(), part.data(), part.size());
      if (put < 0) {
        if (errno == EINTR) continue;
        fail("write", path, errno);
      }
      part = part.subspan(static_cast<size_t>(put));
    }
  }
  // Network disks report a full quota only here.
  if (::close(fd.release()) != 0 && errno != EINTR) fail("finish writing", path, errno);
}

}  // namespace penstock
