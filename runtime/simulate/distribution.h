// How long something takes, or how large it is, drawn from a distribution: whole numbers, nanoseconds mostly.
//
//   const Distribution decode = Distribution::empirical({{0, 3'000'000}, {0.5, 8'000'000}, {1, 90'000'000}});
//   loop.after(decode.draw(random), ...);
//   decode.mean();                                      // exact, for formulas beside the simulation
//
// Purpose: service times, sizes and times between faults of a simulated fleet. Every kind is drawn by inverting its
//   distribution function at one uniform number, so that two worlds with the same numbers differ by what was changed
//   alone (common random numbers), and by portable_math.h, so that they are the same with every compiler.
// Kinds: constant; exponential; lognormal by its median and the deviation of the logarithm; empirical: quantiles,
//   between which it is linear.
// Thread-safety: values. Failure: Error(usage) for parameters that describe nothing (negative, out of order).
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "runtime/simulate/seeded_random.h"

namespace penstock {

class Distribution {
 public:
  static Distribution constant(int64_t value);
  static Distribution exponential(double mean);
  static Distribution lognormal(double median, double sigma);
  // (share of all draws that are at most the value, value): from share 0 to share 1, neither falls.
  static Distribution empirical(std::vector<std::pair<double, int64_t>> quantiles);

  Distribution times(double factor) const;  // of the same, so many times as large

  int64_t draw(SeededRandom& random) const;  // never negative
  int64_t quantile(double share) const;      // 0 < share < 1
  double mean() const noexcept { return mean_; }

 private:
  enum class Kind { empirical, exponential, lognormal };
  explicit Distribution(Kind kind) : kind_(kind) {}

  Kind kind_;
  double a_ = 0;  // mean; median
  double b_ = 0;  // sigma
  double mean_ = 0;
  std::vector<std::pair<double, int64_t>> quantiles_;
};

}  // namespace penstock
