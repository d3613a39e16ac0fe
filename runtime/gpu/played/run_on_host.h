// The GPU's kernels on this CPU: the same functions, in loops instead of grids.
//
//   run_on_host(memory, launch);      // launch by launch, in order
//
// For tests without a GPU, and for HostGpu (host_gpu.h). Plain and slow: the CPU path proper is transforms/pipeline.h.
// Thread-safety: as kernels.h; one call at a time for one batch.
#pragma once

#include <cstdint>

#include "runtime/gpu/batch_layout.h"

namespace penstock {

void run_on_host(uint8_t* memory, const StageLaunch& launch);

}  // namespace penstock
