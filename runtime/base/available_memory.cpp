#include "runtime/base/available_memory.h"

#include <cinttypes>
#include <cstdio>

namespace penstock {

uint64_t available_memory() {
  std::FILE* file = std::fopen("/proc/meminfo", "re");
  if (file == nullptr) return ~uint64_t{0};
  uint64_t kilobytes = 0;
  bool found = false;
  char line[128];
  while (!found && std::fgets(line, sizeof line, file) != nullptr) {
    found = std::sscanf(line, "MemAvailable: %" SCNu64, &kilobytes) == 1;
  }
  std::fclose(file);
  return found ? kilobytes * 1024 : ~uint64_t{0};
}

}  // namespace penstock
