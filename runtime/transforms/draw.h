// Random draws as a pure function of who draws: counter-based, so no state is shared, saved or advanced in order.
//
//   DrawStream stream({.seed = 1, .epoch = 0, .index = 42, .occurrence = 0}, /*position=*/0);
//   double area = stream.uniform(0.08, 1.0);   // draw 0
//   uint32_t x = stream.below(100);            // draw 1: 0 ... 99
//
// Generator: Philox4x32-10 (Salmon et al., SC'11; the Random123 library's own code). One draw is one block:
//   key      word 0  seed, low 32 bits          word 1  seed, high 32 bits
//   counter  word 0  index, low 32 bits         word 1  index, bits 32-47 | occurrence << 16
//            word 2  epoch                      word 3  position in the pipeline | draw number << 16
//   From the block's output, words 0 and 1 make one 64-bit number u = word 0 | word 1 << 32; words 2 and 3 are spare.
// Every draw function takes exactly one draw number, whatever it returns, so that a transform's later draws do not
//   depend on its earlier values' magnitude.
// Exactness: doubles by +, -, * alone and draw_math.h; equal for any compiler and CPU
// (tests/transforms/draw_hash_test). Thread-safety: a DrawStream is a value. Usable in device code (-fmad=false).
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/base/sample.h"
#include "runtime/pixels/draw_math.h"
#include "runtime/pixels/philox.h"

namespace penstock {

class DrawStream {
 public:
  PENSTOCK_HD DrawStream(const DrawKey& key, uint16_t position, uint16_t first_draw = 0) noexcept
      : key_(key), position_(position), next_(first_draw) {}

  // The 64 bits of the next draw. Draw numbers are 16 bits: a transform has 65,536 draws.
  PENSTOCK_HD uint64_t bits() noexcept {
    PhiloxBlock counter;
    counter.word[0] = static_cast<uint32_t>(key_.index);
    counter.word[1] =
        static_cast<uint32_t>((key_.index >> 32) & 0xffffU) | (static_cast<uint32_t>(key_.occurrence) << 16);
    counter.word[2] = key_.epoch;
    counter.word[3] = static_cast<uint32_t>(position_) | (static_cast<uint32_t>(next_) << 16);
    ++next_;
    const PhiloxBlock out =
        philox4x32_10(counter, static_cast<uint32_t>(key_.seed), static_cast<uint32_t>(key_.seed >> 32));
    return static_cast<uint64_t>(out.word[0]) | (static_cast<uint64_t>(out.word[1]) << 32);
  }

  // Uniform on the multiples of 2^-53 in [0, 1).
  PENSTOCK_HD double uniform01() noexcept { return static_cast<double>(bits() >> 11) * 0x1p-53; }

  // Uniform on [low, high]; high itself only by rounding.
  PENSTOCK_HD double uniform(double low, double high) noexcept { return low + (high - low) * uniform01(); }

  // Uniform on 0 ... n-1 (n >= 1) by multiply and shift of all 64 bits: no value's probability differs from 1/n by more
  // than 2^-64, which no experiment can see, and the number of draws is fixed, which rejection would not give.
  PENSTOCK_HD uint32_t below(uint32_t n) noexcept { return scale_to(bits(), n); }

  // below() of bits that were drawn before n was known.
  PENSTOCK_HD static uint32_t scale_to(uint64_t u, uint32_t n) noexcept {
    const uint64_t low = (u & 0xffffffffU) * n;
    return static_cast<uint32_t>(((u >> 32) * n + (low >> 32)) >> 32);
  }

  // True with probability p: always for p = 1, never for p = 0.
  PENSTOCK_HD bool bernoulli(double p) noexcept { return uniform01() < p; }

  // A uniform permutation of 0 ... count-1 (Fisher-Yates from the end); takes count - 1 draws.
  template <class Integer>
  PENSTOCK_HD void permutation(Integer* out, uint32_t count) noexcept {
    for (uint32_t i = 0; i < count; ++i) out[i] = static_cast<Integer>(i);
    for (uint32_t i = count; i > 1; --i) {
      const uint32_t j = below(i);
      const Integer swapped = out[i - 1];
      out[i - 1] = out[j];
      out[j] = swapped;
    }
  }

  PENSTOCK_HD uint16_t next_draw() const noexcept { return next_; }

 private:
  DrawKey key_;
  uint16_t position_ = 0;
  uint16_t next_ = 0;
};

}  // namespace penstock
