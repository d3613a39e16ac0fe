#include "runtime/gpu/gpus.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include "runtime/base/switches.h"
#include "runtime/gpu/cuda_component.h"
#include "runtime/gpu/played/host_gpu.h"

namespace penstock {

std::vector<int> chosen_gpus(const GpuChoice& choice, int total) {
  std::vector<int> numbers;
  for (int k = 0; k < std::min(choice.count, total); ++k) {
    numbers.push_back(total - 1 - (choice.loader_number * choice.count + k) % total);
  }
  return numbers;
}

namespace {

constexpr size_t kHostGpuBytes = size_t{1} << 30;

// How many the driver counts; none: GPUs are this CPU.
std::optional<int> count_gpus() {
  const std::string said = switches().gpus;
  if (said == "none") {
    throw Error(ErrorKind::runtime, "no GPU can be used: PENSTOCK_GPUS=none is in the environment",
                "unset it, or say loader.executor: cpu");
  }
  if (said == "host") return std::nullopt;
  const int total = cuda_gpus();
  if (total == 0) {
    throw Error(ErrorKind::runtime, "no GPU can be used: the driver counts none",
                "see CUDA_VISIBLE_DEVICES and nvidia-smi, or say loader.executor: cpu");
  }
  return total;
}

}  // namespace

std::string why_no_gpu() {
  try {
    (void)count_gpus();
    return {};
  } catch (const Error& error) {
    return error.message();
  }
}

std::unique_ptr<Gpu> open_trainers_gpu(int number) {
  return count_gpus() ? open_cuda_gpu(number) : open_host_gpu(number, kHostGpuBytes);
}

std::vector<std::unique_ptr<Gpu>> open_gpus(const GpuChoice& choice) {
  std::vector<std::unique_ptr<Gpu>> gpus;
  const std::optional<int> counted = count_gpus();
  if (!counted) {
    for (int k = 0; k < choice.count; ++k) gpus.push_back(open_host_gpu(k, kHostGpuBytes));
    return gpus;
  }
  const int total = *counted;
  for (const int number : chosen_gpus(choice, total)) gpus.push_back(open_cuda_gpu(number));
  return gpus;
}

}  // namespace penstock
