// How much memory the kernel thinks can be had without swapping.
//
//   if (bytes > available_memory()) …   // allocating it would have the OOM killer end some process
//
// Thread-safety: any thread. Failure: none; the largest number where the kernel does not say.
#pragma once

#include <cstdint>

namespace penstock {

uint64_t available_memory();  // bytes

}  // namespace penstock
