// The noise that RandomErasing fills a box with: bytes of Philox blocks, each row beginning with a new one.
//
//   // at = 3 x + channel
//   uint8_t value = noise_byte(noise_block(seed, noise_blocks(width) * row + at / 16), at % 16);
//
// Thread-safety: pure functions, for host and GPU.
#pragma once

#include <cstdint>

#include "runtime/base/host_device.h"
#include "runtime/pixels/philox.h"

namespace penstock {

// How many blocks of noise a row of `width` pixels takes.
PENSTOCK_HOST_DEVICE inline uint32_t noise_blocks(int width) {
  return (static_cast<uint32_t>(width) * 3 + 15) / 16;
}

PENSTOCK_HOST_DEVICE inline PhiloxBlock noise_block(uint64_t seed, uint32_t number) {
  return philox4x32_10({{number, 0, 0, 0}}, static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
}

PENSTOCK_HOST_DEVICE inline uint8_t noise_byte(const PhiloxBlock& block, uint32_t at) {
  return static_cast<uint8_t>(block.word[at / 4] >> (at % 4 * 8));
}

}  // namespace penstock
