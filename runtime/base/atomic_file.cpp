#include "runtime/base/atomic_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fstream>
#include <memory>
#include <utility>

#include "runtime/base/hash.h"
#include "runtime/base/random_hex.h"

namespace penstock {
namespace {

constexpr size_t kBuffer = size_t{4} << 20;
constexpr std::string_view kPartSuffix = ".part";
constexpr size_t kLockDomainDigits = 8;
constexpr size_t kRandomDigits = 12;
constexpr size_t kSuffixLength = 1 + kLockDomainDigits + 1 + kRandomDigits + kPartSuffix.size();
constexpr time_t kLongestPauseSeconds = 24 * 60 * 60;  // between two writes to one part file
constexpr int kMostNames = 100;

struct FolderCloser {
  void operator()(DIR* folder) const { ::closedir(folder); }
};

bool is_lower_hex(std::string_view text) {
  return text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

// Equal for processes that see each other's locks on this device: a mount of one running kernel. Where the kernel does
// not say which one it is, the number is this process's own, and its part files have to wait for their day.
std::string lock_domain(dev_t device) {
  static const std::string kernel = [] {
    std::string boot;
    std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
    return boot.empty() ? random_hex(16) : boot;
  }();
  return hash128(kernel + " " + std::to_string(device)).hex().substr(0, kLockDomainDigits);
}

// False: between its making and its lock, another writer took the file for one that a killed process left.
bool lock_part(int fd, const std::string& part) {
  while (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return false;
    if (errno != EINTR) break;  // The disk has no locks, so nobody takes the file before a day has passed.
  }
  struct stat status {};
  return ::lstat(part.c_str(), &status) == 0 || errno != ENOENT;
}

// Those of killed writers of `leaf`; `own` has just been made, so its time is the disk's clock. Nothing here can fail the
// writing: what cannot be removed now is there for the next writer.
void remove_left_parts(const std::string& folder, std::string_view leaf, std::string_view own, int own_fd) {
  struct stat made {};
  const std::unique_ptr<DIR, FolderCloser> list(::opendir(folder.c_str()));
  if (!list || ::fstat(own_fd, &made) != 0) return;
  const int at = ::dirfd(list.get());
  const auto domain_of = [&](std::string_view name) { return name.substr(leaf.size() + 1, kLockDomainDigits); };
  while (const dirent* entry = ::readdir(list.get())) {
    const std::string_view name = entry->d_name;
    if (name.size() != leaf.size() + kSuffixLength || without_part_suffix(name) != leaf || name == own) continue;
    // NFS gives an exclusive lock only to those who may write. A link or a pipe of that name is not a part file.
    const UniqueFd fd(::openat(at, entry->d_name, O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    struct stat status {};
    if (!fd || ::fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode)) continue;
    const bool locked = ::flock(fd.get(), LOCK_EX | LOCK_NB) == 0;
    if (!locked && errno == EWOULDBLOCK) continue;
    const bool nobodys = locked && domain_of(name) == domain_of(own);
    if (nobodys || made.st_mtime - status.st_mtime > kLongestPauseSeconds) ::unlinkat(at, entry->d_name, 0);
  }
}

const char* remedy_for(int code) {
  switch (code) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG: return "make room, or write to another disk";
    case ENOENT:
    case ENOTDIR: return "make its folder first, or name another";
    case EACCES:
    case EPERM:
    case EROFS: return "name a folder that this user may write to";
    case EISDIR:
    case ENAMETOOLONG: return "give it another name";
    case EIO: return "see what the kernel says of the disk (dmesg)";
    default: return "";
  }
}

}  // namespace

// The user named `path_`; that it is written beside its place first is no concern of theirs.
void AtomicFile::fail(const std::string& action, int code) const {
  throw FileError(code, path_, "cannot " + action + " '" + path_ + "': " + std::strerror(code), remedy_for(code));
}

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)) {
  buffer_.reserve(kBuffer);  // before there is a file: no destructor would remove it
  const size_t slash = path_.rfind('/');
  const size_t leaf = slash == std::string::npos ? 0 : slash + 1;
  folder_ = leaf == 0 ? "." : path_.substr(0, std::max<size_t>(slash, 1));
  struct stat folder {};
  (void)::stat(folder_.c_str(), &folder);  // Where it cannot be seen, making the file says why.
  const std::string domain = lock_domain(folder.st_dev);
  for (int names = 0; !fd_; ++names) {
    if (names == kMostNames) fail("create", EBUSY);
    part_ = path_ + '.' + domain + '-' + random_hex(kRandomDigits / 2);
    part_ += kPartSuffix;
    fd_ = UniqueFd(::open(part_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666));
    if (!fd_ && errno != EEXIST) fail("create", errno);
    if (!fd_ || lock_part(fd_.get(), part_)) continue;
    ::unlink(part_.c_str());
    fd_.reset();
  }
  remove_left_parts(folder_, std::string_view(path_).substr(leaf), std::string_view(part_).substr(leaf), fd_.get());
}

AtomicFile::~AtomicFile() {
  if (!published_) ::unlink(part_.c_str());
}

void AtomicFile::flush() {
  for (size_t done = 0; done < buffer_.size();) {
    const ssize_t put = ::write(fd_.get(), buffer_.data() + done, buffer_.size() - done);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail("write", errno);
    done += static_cast<size_t>(put);
  }
  buffer_.clear();
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  size_ += bytes.size();
  while (!bytes.empty()) {
    const size_t part = std::min(bytes.size(), kBuffer - buffer_.size());
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(part));
    bytes = bytes.subspan(part);
    if (buffer_.size() == kBuffer) flush();
  }
}

void AtomicFile::close() {
  flush();
  // Network disks report a full quota only here.
  if (::fsync(fd_.get()) != 0) fail("finish writing", errno);
  // The lock has to last until the file has its name, so a second descriptor is closed for what closing reports.
  if (::close(fd_.duplicate().release()) != 0 && errno != EINTR) fail("finish writing", errno);
}

void AtomicFile::publish() {
  if (::rename(part_.c_str(), path_.c_str()) != 0) fail("create", errno);
  published_ = true;
  fd_.reset();
  const UniqueFd fd(::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // Some network disks know no fsync of a folder, and keep names safe without.
  if (!fd || (::fsync(fd.get()) != 0 && errno != EINVAL && errno != ENOTSUP)) fail("save the folder of", errno);
}

std::string_view without_part_suffix(std::string_view name) {
  if (name.size() <= kSuffixLength) return name;
  const std::string_view suffix = name.substr(name.size() - kSuffixLength);
  const bool is_part = suffix.front() == '.' && is_lower_hex(suffix.substr(1, kLockDomainDigits)) &&
                       suffix[1 + kLockDomainDigits] == '-' &&
                       is_lower_hex(suffix.substr(2 + kLockDomainDigits, kRandomDigits)) &&
                       suffix.ends_with(kPartSuffix);
  return is_part ? name.substr(0, name.size() - kSuffixLength) : name;
}

void write_new_file(const std::string& path, std::span<const std::byte> bytes) {
  AtomicFile file(path);
  file.write(bytes);
  file.close();
  file.publish();
}

}  // namespace penstock
