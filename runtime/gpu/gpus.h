// Which GPUs a loader has.
//
//   std::vector<std::unique_ptr<Gpu>> gpus = open_gpus({.count = 1, .loader_number = 0});
//
// Loaders of a node count from the last GPU down, as trainers count from the first up; so the two stay apart while
//   there are GPUs enough, and share when not.
// PENSTOCK_GPUS in the environment: `host` gives GPUs that are this CPU (host_gpu.h), `none` gives none; for tests
//   and comparisons.
// Failure: Error(runtime), with what to do, where not one can be opened. Thread-safety: a free function.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/gpu/gpu.h"

namespace penstock {

struct GpuChoice {
  int count = 1;          // of this loader
  int loader_number = 0;  // which loader of its node it is
};

std::vector<std::unique_ptr<Gpu>> open_gpus(const GpuChoice& choice);

// The GPU of a trainer, by the number that its program knows it by; PENSTOCK_GPUS as above.
std::unique_ptr<Gpu> open_trainers_gpu(int number);
// Empty where there is one; else what open_trainers_gpu() would say. Makes no context on any GPU.
std::string why_no_gpu();

// The numbers it takes, of `total` GPUs; each once.
std::vector<int> chosen_gpus(const GpuChoice& choice, int total);

}  // namespace penstock
