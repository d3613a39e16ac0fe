// One block of Philox4x32-10 (Salmon et al., SC'11; the Random123 library's own code).
//
//   const PhiloxBlock block = philox4x32_10({{counter, 0, 0, 0}}, key0, key1);
//
// Thread-safety: a pure function, for host and GPU.
#pragma once

// Its vectors of 128 bits, unused here, would bring all of the compiler's intrinsics into half of all files. (Without
// them gcc 12 does not survive blur.cpp under its sanitizers.)
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define R123_USE_SSE 0
#endif
#include <Random123/philox.h>

#include <cstdint>

#include "runtime/base/host_device.h"

namespace penstock {

struct PhiloxBlock {
  uint32_t word[4];
};

PENSTOCK_HOST_DEVICE inline PhiloxBlock philox4x32_10(const PhiloxBlock& counter, uint32_t key0,
                                                      uint32_t key1) noexcept {
  const philox4x32_ctr_t in = {{counter.word[0], counter.word[1], counter.word[2], counter.word[3]}};
  const philox4x32_key_t key = {{key0, key1}};
  const philox4x32_ctr_t out = philox4x32_R(10, in, key);
  return {{out.v[0], out.v[1], out.v[2], out.v[3]}};
}

}  // namespace penstock
