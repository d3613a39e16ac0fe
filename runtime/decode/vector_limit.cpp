// PENSTOCK_VECTORS=avx2 (or sse4, ssse3) in the environment: no wider vectors than these, in this whole process; to
// measure on one machine what another would do. Results do not depend on it.
#include <hwy/targets.h>

#include <cstdint>
#include <cstdlib>
#include <string_view>

namespace penstock {
namespace {

// Before anything is dispatched: the choice of a kernel is made once, at its first call.
const bool limited = [] {
  const char* const value = std::getenv("PENSTOCK_VECTORS");
  if (value == nullptr) return false;
  const std::string_view widest = value;
  int64_t wider = HWY_AVX3 | HWY_AVX3_DL;
  if (widest == "sse4" || widest == "ssse3") wider |= HWY_AVX2;
  if (widest == "ssse3") wider |= HWY_SSE4;
  if (widest != "avx2" && widest != "sse4" && widest != "ssse3") return false;
  hwy::DisableTargets(wider);
  return true;
}();

}  // namespace
}  // namespace penstock
