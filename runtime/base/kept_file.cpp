#include "runtime/base/kept_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <memory>
#include <string_view>
#include <thread>
#include <vector>

#include "runtime/base/file_system.h"

namespace penstock {
namespace {

constexpr std::string_view kScheme = "/memfd:";
constexpr std::chrono::milliseconds kBetweenLooks(20);

// None where the folder has gone, or is another user's.
std::vector<std::string> numbers_in(const std::string& folder) {
  struct Close {
    void operator()(DIR* stream) const noexcept { ::closedir(stream); }
  };
  std::vector<std::string> names;
  const std::unique_ptr<DIR, Close> stream(::opendir(folder.c_str()));
  if (!stream) return names;
  while (const dirent* entry = ::readdir(stream.get()))
    if (std::isdigit(static_cast<unsigned char>(entry->d_name[0])) != 0) names.emplace_back(entry->d_name);
  return names;
}

// The kernel adds " (deleted)": such a file has no name in any folder.
bool leads_to(const std::string& link, const std::string& path) {
  std::array<char, PATH_MAX> target{};
  const ssize_t length = ::readlink(link.c_str(), target.data(), target.size());
  if (length < 0) return false;
  const std::string_view name(target.data(), static_cast<size_t>(length));
  return name.starts_with(path) && (name.size() == path.size() || name[path.size()] == ' ');
}

// Sealed when all of it was there. A root's process sees files of other users, too.
bool is_whole_and_ours(int fd) {
  struct stat status {};
  const int seals = ::fcntl(fd, F_GET_SEALS);
  return seals >= 0 && (seals & F_SEAL_WRITE) != 0 && ::fstat(fd, &status) == 0 && status.st_uid == ::geteuid();
}

UniqueFd look_in(const std::string& process, const std::string& path) {
  const std::string folder = "/proc/" + process + "/fd";
  for (const std::string& number : numbers_in(folder)) {
    const std::string link = folder + "/" + number;
    if (!leads_to(link, path)) continue;
    UniqueFd fd(::open(link.c_str(), O_RDONLY | O_CLOEXEC));
    if (fd && leads_to("/proc/self/fd/" + std::to_string(fd.get()), path) && is_whole_and_ours(fd.get())) return fd;
  }
  return {};
}

UniqueFd look(const std::string& path) {
  if (UniqueFd own = look_in("self", path)) return own;
  for (const std::string& process : numbers_in("/proc"))
    if (UniqueFd found = look_in(process, path)) return found;
  return {};
}

}  // namespace

bool is_kept_file(const std::string& path) {
  return path.starts_with(kScheme);
}

UniqueFd open_kept_file(const std::string& path, int64_t wait_us) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(wait_us);
  for (;;) {
    if (UniqueFd found = look(path)) return found;
    if (std::chrono::steady_clock::now() >= until) break;
    std::this_thread::sleep_for(kBetweenLooks);
  }
  throw FileError(
      ENOENT, path,
      "no program of this user on this node keeps the list '" + path.substr(kScheme.size()) + "' in its memory",
      "the program that gives the data set has to run on every node that loads, in the same container as the "
      "loaders; or write the list to a file: penstock.FileList, sampler.indices");
}

}  // namespace penstock
