// Preloaded into penstock's processes (LD_PRELOAD), this makes them choose the code for AVX2 on a CPU that has AVX-512:
// what the variants *_avx2 of the delivery benchmark run. bench_stages says which code was chosen.
#include <hwy/targets.h>

namespace {
// Better targets have lower bits.
__attribute__((constructor)) void forget_what_is_better_than_avx2() {
  hwy::DisableTargets(HWY_AVX2 - 1);
}
}  // namespace
