#include "runtime/simulate/distribution.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/base/hash.h"

namespace penstock {
namespace {

struct Case {
  const char* name;
  Distribution distribution;
  double mean;
};

std::vector<Case> cases() {
  return {{"constant", Distribution::constant(7'000'000), 7e6},
          {"uniform", Distribution::empirical({{0, 1'000'000}, {1, 3'000'000}}), 2e6},
          {"exponential", Distribution::exponential(5e6), 5e6},
          {"lognormal", Distribution::lognormal(2e6, 0.5), 2e6 * std::exp(0.125)},
          {"quantiles", Distribution::empirical({{0, 0}, {0.5, 1'000'000}, {0.9, 2'000'000}, {1, 12'000'000}}),
           0.5 * 0.5e6 + 0.4 * 1.5e6 + 0.1 * 7e6}};
}

TEST_CASE("a million draws have the mean that is said, and the quantiles are those of the draws") {
  for (const Case& one : cases()) {
    CAPTURE(one.name);
    CHECK(one.distribution.mean() == doctest::Approx(one.mean).epsilon(1e-9));
    SeededRandom random(11);
    std::vector<int64_t> draws(1'000'000);
    double sum = 0;
    for (int64_t& draw : draws) {
      draw = one.distribution.draw(random);
      REQUIRE(draw >= 0);
      sum += static_cast<double>(draw);
    }
    CHECK(sum / 1e6 == doctest::Approx(one.mean).epsilon(0.01));
    std::sort(draws.begin(), draws.end());
    for (const double share : {0.01, 0.25, 0.5, 0.85, 0.99}) {
      CAPTURE(share);
      const auto drawn = static_cast<double>(draws[static_cast<size_t>(share * 1e6)]);
      CHECK(drawn == doctest::Approx(static_cast<double>(one.distribution.quantile(share))).epsilon(0.02));
    }
  }
}

TEST_CASE("one number a draw, and more of it never means less: worlds with common random numbers can be compared") {
  for (const Case& one : cases()) {
    CAPTURE(one.name);
    int64_t before = 0;
    for (int i = 1; i < 10'000; ++i) {
      const int64_t value = one.distribution.quantile(i / 10'000.0);
      REQUIRE(value >= before);
      before = value;
    }
    SeededRandom first(3), second(3);
    (void)one.distribution.draw(first);
    (void)second.bits();
    CHECK(first.bits() == second.bits());
  }
}

TEST_CASE("the draws of a seed are these, whatever the compiler and its library") {
  std::string all;
  for (const Case& one : cases()) {
    SeededRandom random(5);
    for (int i = 0; i < 1000; ++i) all += std::to_string(one.distribution.draw(random)) + " ";
  }
  CHECK(hash128(all).hex() == "ee4fa8bc5b2a44d5307665b0e3890f0e");
}

TEST_CASE("what describes nothing is refused") {
  CHECK_THROWS_AS((void)Distribution::empirical({{0, 3}, {1, 2}}), Error);
  CHECK_THROWS_AS((void)Distribution::constant(-1), Error);
  CHECK_THROWS_AS((void)Distribution::exponential(-1), Error);
  CHECK_THROWS_AS((void)Distribution::lognormal(0, 1), Error);
  CHECK_THROWS_AS((void)Distribution::empirical({{0, 1}}), Error);
  CHECK_THROWS_AS((void)Distribution::empirical({{0.1, 1}, {1, 2}}), Error);
  CHECK_THROWS_AS((void)Distribution::empirical({{0, 1}, {0.6, 3}, {0.5, 4}, {1, 5}}), Error);
}

}  // namespace
}  // namespace penstock
