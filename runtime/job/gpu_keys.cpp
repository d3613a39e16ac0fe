#include "runtime/job/gpu_keys.h"

#include "runtime/base/arithmetic.h"
#include "runtime/job/suggest.h"

namespace penstock {

ExecutorKind executor_of(const Job& job) {
  const bool left = arithmetic_of(job.arithmetic) == Arithmetic::opencv || job.color != "rgb";
  return left ? ExecutorKind::cpu : job.loader.executor;
}

std::string gpu_keys_without_effect(const Job& job) {
  const LoaderSpec usual;
  if (job.loader.executor != ExecutorKind::cpu) {
    if (job.loader.nvjpeg != usual.nvjpeg && arithmetic_of(job.arithmetic) != Arithmetic::fast) {
      return "without effect, because arithmetic is " + job.arithmetic + ": loader.nvjpeg";
    }
    if (arithmetic_of(job.arithmetic) == Arithmetic::opencv) {
      return "without effect, because arithmetic is opencv, which GPUs leave to the CPU: loader.executor";
    }
    if (job.color != "rgb") return "without effect, because color is bgr, which GPUs leave to the CPU: loader.executor";
    if (job.loader.gpu_links != usual.gpu_links && job.loader.gpu_export_mb == 0) {
      return "without effect, because loader.gpu_export_mb is 0: loader.gpu_links";
    }
    return {};
  }
  std::vector<std::string> keys;
  if (job.loader.gpus != usual.gpus) keys.emplace_back("loader.gpus");
  if (job.loader.gpu_memory_mb != usual.gpu_memory_mb) keys.emplace_back("loader.gpu_memory_mb");
  if (job.loader.gpu_duty != usual.gpu_duty) keys.emplace_back("loader.gpu_duty");
  if (job.loader.gpu_export_mb != usual.gpu_export_mb) keys.emplace_back("loader.gpu_export_mb");
  if (job.loader.gpu_links != usual.gpu_links) keys.emplace_back("loader.gpu_links");
  if (job.loader.nvjpeg != usual.nvjpeg) keys.emplace_back("loader.nvjpeg");
  if (job.loader.gpu_entropy != usual.gpu_entropy) keys.emplace_back("loader.gpu_entropy");
  if (job.loader.cpu_fraction.given()) keys.emplace_back("loader.cpu_fraction");
  return keys.empty() ? "" : "without effect, because loader.executor is cpu: " + list_of(keys, "and");
}

}  // namespace penstock
