#include "launch/contained_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/base/file_system.h"

namespace penstock {
namespace {

constexpr const char* kPart = ".penstock-unpack.part";

[[noreturn]] void fail(const std::string& action, const std::string& path) {
  const int code = errno;
  const bool full = code == ENOSPC || code == EDQUOT || code == EFBIG;
  throw FileError(code, path, "cannot " + action + " '" + path + "': " + std::strerror(code),
                  full ? "make room, or write to another disk" : "");
}

bool exists(int parent, const std::string& leaf) {
  struct stat status {};
  return ::fstatat(parent, leaf.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0;
}

bool same(int parent, const std::string& leaf, std::span<const std::byte> bytes) {
  const UniqueFd fd(::openat(parent, leaf.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat status {};
  if (!fd || ::fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode) ||
      static_cast<uint64_t>(status.st_size) != bytes.size()) {
    return false;
  }
  std::vector<std::byte> buffer(size_t{1} << 16);
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t got = ::read(fd.get(), buffer.data(), std::min(buffer.size(), bytes.size() - done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0 || std::memcmp(buffer.data(), bytes.data() + done, static_cast<size_t>(got)) != 0) return false;
    done += static_cast<size_t>(got);
  }
  return true;
}

}  // namespace

ContainedFolder::ContainedFolder(const std::string& path, bool overwrite) : path_(path), overwrite_(overwrite) {
  std::error_code code;
  std::filesystem::create_directories(path, code);
  if (code) {
    throw FileError(code.value(), path, "cannot create the folder '" + path + "': " + code.message(),
                    "check the path and its permissions");
  }
  top_ = UniqueFd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!top_) fail("open", path);
  // Some network disks know no locks; there it is up to the user.
  if (::flock(top_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    throw Error(ErrorKind::usage, "another process is writing files to '" + path + "'",
                "wait for it, or name another folder");
  }
  (void)::unlinkat(top_.get(), kPart, 0);
}

bool ContainedFolder::write(const std::string& name, std::span<const std::byte> bytes) {
  if (const std::string why = unsafe_name(name); !why.empty()) {
    throw Error(ErrorKind::usage, "'" + name.substr(0, 200) + "' cannot be written below '" + path_ + "': " + why);
  }
  const size_t slash = name.rfind('/');
  const std::string leaf = slash == std::string::npos ? name : name.substr(slash + 1);
  const int parent = enter(slash == std::string::npos ? "" : name.substr(0, slash));
  if (!overwrite_ && exists(parent, leaf)) {
    if (same(parent, leaf, bytes)) return false;
    refuse_to_replace(name);
  }
  try {
    UniqueFd fd(::openat(top_.get(), kPart, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
    if (!fd) fail("create", path_ + "/" + name);
    for (size_t done = 0; done < bytes.size();) {
      const ssize_t put = ::write(fd.get(), bytes.data() + done, bytes.size() - done);
      if (put < 0 && errno == EINTR) continue;
      if (put < 0) fail("write", path_ + "/" + name);
      done += static_cast<size_t>(put);
    }
    if (::close(fd.release()) != 0 && errno != EINTR) fail("finish writing", path_ + "/" + name);
    name_it(parent, leaf, name);
  } catch (...) {
    (void)::unlinkat(top_.get(), kPart, 0);
    throw;
  }
  return true;
}

void ContainedFolder::save() {
  if (::syncfs(top_.get()) != 0) fail("save", path_);
}

void ContainedFolder::refuse_to_replace(const std::string& name) const {
  throw Error(ErrorKind::usage, "'" + path_ + "/" + name + "' is there already, and is another file",
              "name an empty folder, or say --overwrite to replace what is in the way");
}

void ContainedFolder::name_it(int parent, const std::string& leaf, const std::string& name) const {
  // A link in the way is replaced, never followed.
  if (overwrite_) {
    if (::renameat(top_.get(), kPart, parent, leaf.c_str()) != 0) fail("rename to", path_ + "/" + name);
    return;
  }
  // Replaces nothing. Some network disks know no such rename, others no second name of a file.
  if (::renameat2(top_.get(), kPart, parent, leaf.c_str(), RENAME_NOREPLACE) == 0) return;
  if (errno == EINVAL || errno == ENOSYS) {
    if (::linkat(top_.get(), kPart, parent, leaf.c_str(), 0) == 0) {
      (void)::unlinkat(top_.get(), kPart, 0);
      return;
    }
  }
  if (errno == EEXIST) refuse_to_replace(name);
  fail("create", path_ + "/" + name);
}

int ContainedFolder::enter(const std::string& folder) {
  if (parent_ && folder == entered_) return parent_.get();
  UniqueFd at = top_.duplicate();
  for (size_t begin = 0; begin < folder.size();) {
    const size_t end = std::min(folder.find('/', begin), folder.size());
    const std::string step = folder.substr(begin, end - begin);
    if (::mkdirat(at.get(), step.c_str(), 0777) != 0 && errno != EEXIST) {
      fail("create the folder", path_ + "/" + folder.substr(0, end));
    }
    UniqueFd next(::openat(at.get(), step.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!next && (errno == ELOOP || errno == ENOTDIR)) {
      throw Error(ErrorKind::usage,
                  "'" + path_ + "/" + folder.substr(0, end) + "' is a link or a file, and a folder is needed there",
                  "remove it, or name another folder");
    }
    if (!next) fail("open the folder", path_ + "/" + folder.substr(0, end));
    at = std::move(next);
    begin = end + 1;
  }
  parent_ = std::move(at);
  entered_ = folder;
  return parent_.get();
}

std::string unsafe_name(const std::string& name) {
  if (name.empty()) return "it is empty";
  if (name.front() == '/') return "it is absolute";
  if (name.find('\0') != std::string::npos) return "it has a NUL in it";
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('/', begin), name.size());
    const std::string_view step = std::string_view(name).substr(begin, end - begin);
    if (step == "..") return "'..' leads out of the folder";
    if (step.empty() || step == ".") return "it has an empty step, or '.', in it";
    if (step.size() > kMaxNameStep) return "a step of it is longer than 255 bytes";
    begin = end + 1;
  }
  return {};
}

}  // namespace penstock
