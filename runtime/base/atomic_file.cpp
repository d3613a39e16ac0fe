#include "runtime/base/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

namespace penstock {
namespace {

constexpr size_t kBuffer = size_t{4} << 20;

}  // namespace

void AtomicFile::fail(const std::string& action, const std::string& path, int code) const {
  const bool full = code == ENOSPC || code == EDQUOT || code == EFBIG;
  throw FileError(code, path, "cannot " + action + " '" + path + "': " + std::strerror(code),
                  full ? "make room, or write to another disk" : "");
}

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)), part_(path_ + kPartSuffix) {
  buffer_.reserve(kBuffer);  // before there is a file: no destructor would remove it
  // What a killed run left may be a link that somebody planted: never written through.
  if (::unlink(part_.c_str()) != 0 && errno != ENOENT) fail("remove", part_, errno);
  fd_ = UniqueFd(::open(part_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666));
  if (!fd_) fail("create", part_, errno);
}

AtomicFile::~AtomicFile() {
  if (!published_) ::unlink(part_.c_str());
}

void AtomicFile::flush() {
  for (size_t done = 0; done < buffer_.size();) {
    const ssize_t put = ::write(fd_.get(), buffer_.data() + done, buffer_.size() - done);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail("write", part_, errno);
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
  if (::fsync(fd_.get()) != 0) fail("finish writing", part_, errno);
  if (::close(fd_.release()) != 0 && errno != EINTR) fail("finish writing", part_, errno);
}

void AtomicFile::publish() {
  if (::rename(part_.c_str(), path_.c_str()) != 0) fail("rename", part_, errno);
  published_ = true;
  const size_t slash = path_.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path_.substr(0, slash == 0 ? 1 : slash);
  const UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // Some network disks know no fsync of a folder, and keep names safe without.
  if (!fd || (::fsync(fd.get()) != 0 && errno != EINVAL && errno != ENOTSUP)) fail("save the folder", folder, errno);
}

void write_new_file(const std::string& path, std::span<const std::byte> bytes) {
  AtomicFile file(path);
  file.write(bytes);
  file.close();
  file.publish();
}

}  // namespace penstock
