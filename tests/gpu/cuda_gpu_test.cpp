// A real GPU against the CPU path: the same checks as gpu_kernels_test, and what only a GPU can be asked.
#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>

#include "runtime/gpu/cuda_component.h"
#include "tests/gpu/finisher_checks.h"
#include "tests/gpu/gpu_checks.h"

namespace {

using namespace penstock;

// Ends the test as skipped where there is none.
std::shared_ptr<Gpu> first_gpu() {
  try {
    return open_cuda_gpu(0);
  } catch (const Error& error) {
    std::printf("SKIP: no GPU: %s\n", error.what());
    std::exit(77);
  }
}

}  // namespace

TEST_CASE("a GPU makes the CPU's bytes") {
  const std::shared_ptr<Gpu> gpu = first_gpu();
  std::printf("%s, %lld MB\n", gpu->info().name.c_str(), static_cast<long long>(gpu->info().memory_bytes >> 20));
  penstock_test::check_batches(*gpu);
  penstock_test::check_statuses(*gpu);
  penstock_test::check_search(*gpu);
  penstock_test::check_digests(*gpu);
  penstock_test::check_shared_tables(*gpu);
  penstock_test::check_finished(*gpu);
  penstock_test::check_finisher(gpu);
  penstock_test::check_exported(gpu);
  penstock_test::check_inverse(*gpu);
  penstock_test::check_pixels(*gpu);
  penstock_test::check_all_colours(*gpu);
  penstock_test::check_tones(*gpu);
  penstock_test::check_launches(*gpu);

  // Memory that is not there is an error by name, and no more than that.
  try {
    const GpuBlock block(*gpu, size_t{1} << 50, GpuMemory::device);
    FAIL("a petabyte was allocated");
  } catch (const GpuError& error) {
    CHECK(error.fault() == GpuFault::out_of_memory);
    CHECK(error.message().find(gpu->info().name) != std::string::npos);
  }
  penstock_test::check_inverse(*gpu);
}
