#include "runtime/base/available_memory.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock {
namespace {

// The number at the beginning of `text`; `otherwise` where there is none, as in "max".
uint64_t number_in(std::string_view text, uint64_t otherwise) {
  const size_t begin = text.find_first_not_of(' ');
  if (begin == std::string_view::npos) return otherwise;
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data() + begin, text.data() + text.size(), number);
  return error == std::errc() ? number : otherwise;
}

uint64_t number_of_file(const std::string& path, uint64_t otherwise) {
  std::ifstream file(path);
  std::string line;
  return std::getline(file, line) ? number_in(line, otherwise) : otherwise;
}

// The number behind `key` in a file with a key and a number on each line.
uint64_t number_of_key(const std::string& path, std::string_view key, uint64_t otherwise) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (std::string_view(line).starts_with(key)) return number_in(std::string_view(line).substr(key.size()), otherwise);
  }
  return otherwise;
}

constexpr uint64_t kNoLimit = uint64_t{1} << 62;  // version 1 says a number near 2^63 where there is none

struct MemoryGroup {
  uint64_t limit;  // kUnlimitedMemory: none
  uint64_t room;   // what is left of it
};

struct GroupFiles {
  const char *limit, *used, *inactive, *active;
};
constexpr GroupFiles kVersion2{"/memory.max", "/memory.current", "inactive_file ", "active_file "};
constexpr GroupFiles kVersion1{"/memory.limit_in_bytes", "/memory.usage_in_bytes", "total_inactive_file ",
                               "total_active_file "};

MemoryGroup memory_group(const std::string& folder, const GroupFiles& files) {
  const uint64_t limit = number_of_file(folder + files.limit, kUnlimitedMemory);
  if (limit >= kNoLimit) return {kUnlimitedMemory, kUnlimitedMemory};
  const std::string statistics = folder + "/memory.stat";
  const uint64_t used = number_of_file(folder + files.used, 0);
  const uint64_t cached = number_of_key(statistics, files.inactive, 0) + number_of_key(statistics, files.active, 0);
  const uint64_t held = used - std::min(used, cached);
  return {limit, limit - std::min(limit, held)};
}

// The process's control group, and those above it. In a container the path may be the host's, of which only the root
// is visible; so the root is looked at in any case.
std::vector<MemoryGroup> memory_groups(const std::string& root) {
  std::string version2;
  std::string version1;
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(':');
    const size_t path = line.find(':', colon + 1);
    if (colon == std::string::npos || path == std::string::npos) continue;
    const std::string controllers = "," + line.substr(colon + 1, path - colon - 1) + ",";
    if (controllers == ",,") version2 = line.substr(path + 1);
    if (controllers.find(",memory,") != std::string::npos) version1 = line.substr(path + 1);
  }
  std::vector<MemoryGroup> groups;
  const auto walk = [&](const std::string& top, std::string path, const GroupFiles& files) {
    for (;;) {
      while (path.ends_with('/')) path.pop_back();
      groups.push_back(memory_group(top + path, files));
      if (path.empty()) return;
      path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
    }
  };
  walk(root + "/sys/fs/cgroup", version2, kVersion2);
  walk(root + "/sys/fs/cgroup/memory", version1, kVersion1);
  return groups;
}

}  // namespace

uint64_t available_memory(const std::string& root) {
  const uint64_t kilobytes = number_of_key(root + "/proc/meminfo", "MemAvailable:", kUnlimitedMemory);
  uint64_t available = kilobytes == kUnlimitedMemory ? kilobytes : kilobytes * 1024;
  for (const MemoryGroup& group : memory_groups(root)) available = std::min(available, group.room);
  return available;
}

uint64_t memory_group_limit(const std::string& root) {
  uint64_t limit = kUnlimitedMemory;
  for (const MemoryGroup& group : memory_groups(root)) limit = std::min(limit, group.limit);
  return limit;
}

}  // namespace penstock
