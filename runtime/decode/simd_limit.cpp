// PENSTOCK_VECTORS=avx2 (or sse4, ssse3) in the environment: no wider vectors than these, in this whole process; to
// measure on one machine what another would do. Results do not depend on it.
#include <hwy/targets.h>

#include <cstdint>
#include <string>

#include "runtime/base/switches.h"

namespace penstock {
namespace {

// Before anything is dispatched: the choice of a kernel is made once, at its first call.
const bool limited = [] {
  const std::string widest = switches().vectors;
  // Better targets are lower bits.
  int64_t target = 0;
  if (widest == "avx2") target = HWY_AVX2;
  if (widest == "sse4") target = HWY_SSE4;
  if (widest == "ssse3") target = HWY_SSSE3;
  if (target == 0) return false;
  hwy::DisableTargets(target - 1);
  return true;
}();

}  // namespace
}  // namespace penstock
