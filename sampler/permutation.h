// The shuffle: torch's CPU randperm over its mt19937, index for index.
//
//   Permutation order = Permutation::shuffled(1281167, /*seed=*/0 + epoch);  // torch.randperm after manual_seed
//   order[0];                                                               // O(1)
//   Permutation same = order;                                               // copies share the memory
//
// Contract: equal to torch.randperm(n, generator=g) after g.manual_seed(seed), on the CPU, for any output dtype.
//   manual_seed keeps the low 32 bits of its argument only, so seeds that differ by a multiple of 2^32 shuffle alike,
//   in torch and here. A seed + epoch that passes 2^64 wraps round here, where torch raises.
// Versions: below 214,748,364 samples (2^32 / 20) every torch release so far draws the same order. From there on torch
//   2.6 draws 64 bits a sample and builds the order inside out, because 32 bits modulo n are visibly biased;
//   RandpermRule says which of the two is meant.
// Memory: 4 bytes a sample below 2^32 samples, else 8; none for the identity.
// Failure: Error(usage) for a negative size; Error(runtime) where memory is short, naming how much was asked for.
// Thread-safety: immutable after construction. Ownership: copies share one immutable buffer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <vector>

namespace penstock {

// torch's CPU generator: MT19937, whose seeding and output the C++ standard fixes to the same values as torch's own.
class TorchGenerator {
 public:
  explicit TorchGenerator(uint64_t seed) : engine_(static_cast<uint32_t>(seed)) {}

  uint32_t random() { return static_cast<uint32_t>(engine_()); }
  uint64_t random64() {  // the first draw is the high half
    const uint64_t high = random();
    return high << 32 | random();
  }

 private:
  std::mt19937 engine_;
};

enum class RandpermRule : uint8_t {
  torch_2_6 = 0,  // torch 2.6 and later: 64-bit draws from 214,748,364 samples on
  torch_1 = 1,    // torch 1.x to 2.5: 32-bit draws for any size
};

constexpr int64_t kRandpermLargeFrom = 214748364;  // floor((2^32 - 1) / 20)

// The two ways torch shuffles, for any integer wide enough to hold out.size() - 1. Both fill `out` from scratch.
//   forward:    swap element i with one of i..n-1, one 32-bit draw each but for the last element
//   inside out: put element i at one of 0..i and what stood there at i, one 64-bit draw each
template <class Index>
void randperm_forward(std::span<Index> out, TorchGenerator& generator);
template <class Index>
void randperm_inside_out(std::span<Index> out, TorchGenerator& generator);

class Permutation {
 public:
  Permutation() = default;  // of nothing

  static Permutation identity(int64_t size);
  static Permutation shuffled(int64_t size, uint64_t seed, RandpermRule rule = RandpermRule::torch_2_6);

  int64_t size() const noexcept { return size_; }
  // `place` in [0, size()).
  int64_t operator[](int64_t place) const noexcept {
    if (narrow_) return static_cast<int64_t>((*narrow_)[static_cast<size_t>(place)]);
    if (wide_) return static_cast<int64_t>((*wide_)[static_cast<size_t>(place)]);
    return place;
  }
  size_t bytes() const noexcept {
    return narrow_ ? narrow_->size() * sizeof(uint32_t) : wide_ ? wide_->size() * sizeof(uint64_t) : 0;
  }

 private:
  int64_t size_ = 0;
  std::shared_ptr<const std::vector<uint32_t>> narrow_;  // at most one of the two is set; neither: the identity
  std::shared_ptr<const std::vector<uint64_t>> wide_;
};

}  // namespace penstock
