#include "runtime/simulate/portable_math.h"

#include <doctest/doctest.h>

#include <cmath>

#include "runtime/simulate/seeded_random.h"

namespace penstock {
namespace {

double unit(SeededRandom& random) {
  return (static_cast<double>(random.bits() >> 11) + 0.5) * 0x1p-53;
}

TEST_CASE("logarithm and exponential are the C library's, to nine units in the last place") {
  SeededRandom random(7);
  double worst_ln = 0, worst_exp = 0;
  for (int i = 0; i < 200'000; ++i) {
    const double x = std::ldexp(unit(random), static_cast<int>(random.between(-300, 300)));
    worst_ln = std::max(worst_ln, std::abs(portable_ln(x) / std::log(x) - 1));
    const double near = 1 + (unit(random) - 0.5) * std::ldexp(1.0, -static_cast<int>(random.below(40)));
    if (near != 1) worst_ln = std::max(worst_ln, std::abs(portable_ln(near) / std::log(near) - 1));
    const double y = (unit(random) - 0.5) * 1400;
    worst_exp = std::max(worst_exp, std::abs(portable_exp(y) / std::exp(y) - 1));
  }
  MESSAGE("worst: ln " << worst_ln << ", exp " << worst_exp);
  CHECK(worst_ln < 2e-15);
  CHECK(worst_exp < 2e-15);
  CHECK(portable_ln(1) == 0);
  CHECK(portable_exp(0) == 1);
}

TEST_CASE("the normal quantile is the inverse of the distribution") {
  SeededRandom random(8);
  for (int i = 0; i < 100'000; ++i) {
    const double p = unit(random);
    const double x = portable_normal_quantile(p);
    CHECK(std::abs(0.5 * std::erfc(-x / std::sqrt(2.0)) / p - 1) < 1e-7);  // some x^2 times the quantile's error
  }
  CHECK(portable_normal_quantile(0.5) == 0);
  CHECK(portable_normal_quantile(0.975) == doctest::Approx(1.959963984540054).epsilon(1e-8));
  CHECK(portable_normal_quantile(1e-12) == doctest::Approx(-7.034483825).epsilon(1e-8));
}

}  // namespace
}  // namespace penstock
