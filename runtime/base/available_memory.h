// How much memory can be had before the kernel swaps or ends a process.
//
//   if (bytes > available_memory()) …   // allocating it would have the OOM killer end some process
//
// Control groups count: of the process's group and all groups above it, as far as they are visible, the one with the
// least room decides (cgroup v2: memory.max; v1: memory.limit_in_bytes). Cached files are no obstacle, as the kernel
// drops them; memory that is shared between processes is.
// `root` stands before /proc and /sys, for tests.
// Thread-safety: any thread. Failure: none; the largest number where the kernel does not say.
#pragma once

#include <cstdint>
#include <string>

namespace penstock {

inline constexpr uint64_t kUnlimitedMemory = ~uint64_t{0};

uint64_t available_memory(const std::string& root = {});  // bytes

// The least limit of the process's control groups, in bytes; kUnlimitedMemory where there is none.
uint64_t memory_group_limit(const std::string& root = {});

}  // namespace penstock
