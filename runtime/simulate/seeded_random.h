// Random numbers of a simulated world: the same for a seed with every compiler, unlike std's distributions.
//
//   SeededRandom random(seed);
//   random.below(6);  random.between(10, 20);  random.chance(5);   // 5 in 100
#pragma once

#include <cstdint>

namespace penstock {

class SeededRandom {
 public:
  explicit SeededRandom(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 1) {}

  // SplitMix64: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.
  uint64_t bits() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  int64_t below(int64_t end) { return static_cast<int64_t>(bits() % static_cast<uint64_t>(end)); }
  int64_t between(int64_t first, int64_t last) { return first + below(last - first + 1); }
  bool chance(int64_t percent) { return below(100) < percent; }

 private:
  uint64_t state_;
};

}  // namespace penstock
