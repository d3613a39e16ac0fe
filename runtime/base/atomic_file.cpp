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

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)), part_(path_ + kPartSuffix) {
  buffer_.reserve(kBuffer);  // before there is a file: no destructor would remove it
  // What a killed run left may be a link that somebody planted: never written through.
  if (::unlink(part_.c_str()) != 0 && errno != ENOENT) {
    if (errno != EISDIR) fail("create", errno);
    throw FileError(EISDIR, path_, "cannot create '" + path_ + "': a folder '" + part_ + "' is in the way",
                    "remove that folder, or give the file another name");
  }
  fd_ = UniqueFd(::open(part_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666));
  if (!fd_) fail("create", errno);
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
  if (::close(fd_.release()) != 0 && errno != EINTR) fail("finish writing", errno);
}

void AtomicFile::publish() {
  if (::rename(part_.c_str(), path_.c_str()) != 0) fail("create", errno);
  published_ = true;
  const size_t slash = path_.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path_.substr(0, slash == 0 ? 1 : slash);
  const UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // Some network disks know no fsync of a folder, and keep names safe without.
  if (!fd || (::fsync(fd.get()) != 0 && errno != EINVAL && errno != ENOTSUP)) fail("save the folder of", errno);
}

void write_new_file(const std::string& path, std::span<const std::byte> bytes) {
  AtomicFile file(path);
  file.write(bytes);
  file.close();
  file.publish();
}

}  // namespace penstock
