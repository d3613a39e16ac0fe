// Keys that say how GPUs are used, in a job that uses none, or not so.
//
//   const std::string text = gpu_keys_without_effect(job);
//   // "without effect, because loader.executor is cpu: loader.gpus and loader.cpu_fraction"; empty: all have one
//
// Pure. Their default values do not count: nobody has written those.
#pragma once

#include <string>

#include "runtime/job/job.h"

namespace penstock {

std::string gpu_keys_without_effect(const Job& job);

// Who makes samples: loader.executor, or the CPU where GPUs would leave it all of them (arithmetic: opencv, color: bgr).
ExecutorKind executor_of(const Job& job);

}  // namespace penstock
