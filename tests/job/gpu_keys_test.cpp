// Which keys of GPUs say nothing in which jobs.
#include "runtime/job/gpu_keys.h"

#include <doctest/doctest.h>

using namespace penstock;

TEST_CASE("a job that says nothing of GPUs has nothing without effect") {
  Job job;
  for (const ExecutorKind executor : {ExecutorKind::cpu, ExecutorKind::automatic, ExecutorKind::gpu}) {
    job.loader.executor = executor;
    CHECK(gpu_keys_without_effect(job).empty());
  }
}

TEST_CASE("keys of GPUs where there are none") {
  Job job;
  job.loader.executor = ExecutorKind::cpu;
  job.loader.gpus = 2;
  CHECK(gpu_keys_without_effect(job) == "without effect, because loader.executor is cpu: loader.gpus");
  // One reason is enough.
  job.loader.nvjpeg = NvjpegUse::nearest;
  CHECK(gpu_keys_without_effect(job) ==
        "without effect, because loader.executor is cpu: loader.gpus and loader.nvjpeg");
}

TEST_CASE("nvJPEG, whose pixels no job of exact arithmetic may have") {
  Job job;
  job.loader.executor = ExecutorKind::automatic;
  job.loader.nvjpeg = NvjpegUse::interpolated;
  CHECK(gpu_keys_without_effect(job) == "without effect, because arithmetic is exact: loader.nvjpeg");
  job.arithmetic = "fast";
  CHECK(gpu_keys_without_effect(job).empty());
}

TEST_CASE("links, where no memory is shared") {
  Job job;
  job.loader.executor = ExecutorKind::gpu;
  job.loader.gpu_links = GpuLinksKind::nccl;
  CHECK(gpu_keys_without_effect(job) == "without effect, because loader.gpu_export_mb is 0: loader.gpu_links");
  job.loader.gpu_export_mb = 1;
  CHECK(gpu_keys_without_effect(job).empty());
}
