#include "runtime/transforms/draw.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

using penstock::DrawKey;
using penstock::DrawStream;
using penstock::philox4x32_10;
using penstock::PhiloxBlock;

namespace {

constexpr uint64_t kSeed = 20240611;

// Distance of `got` from the exact result in units of its last place.
double ulps(double got, long double exact) {
  int exponent = 0;
  std::frexp(static_cast<double>(exact), &exponent);
  return static_cast<double>(std::fabs(static_cast<long double>(got) - exact) / std::ldexp(1.0L, exponent - 53));
}

template <class Ours, class Exact>
double worst_ulps(double low, double high, Ours ours, Exact exact) {
  std::mt19937_64 random(kSeed);
  std::uniform_real_distribution<double> uniform(low, high);
  double worst = 0;
  for (int i = 0; i < 400'000; ++i) {
    const double x = uniform(random);
    worst = std::max(worst, ulps(ours(x), exact(static_cast<long double>(x))));
  }
  return worst;
}

}  // namespace

TEST_CASE("Philox4x32-10 gives Random123's published answers") {
  struct Known {
    PhiloxBlock counter;
    uint32_t key[2];
    PhiloxBlock result;
  };
  const Known known[] = {
      {{{0, 0, 0, 0}}, {0, 0}, {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}}},
      {{{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}},
       {0xffffffff, 0xffffffff},
       {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}}},
      {{{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}},  // digits of pi
       {0xa4093822, 0x299f31d0},
       {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}},
  };
  for (const Known& k : known) {
    const PhiloxBlock out = philox4x32_10(k.counter, k.key[0], k.key[1]);
    for (int i = 0; i < 4; ++i) CHECK(out.word[i] == k.result.word[i]);
  }
}

TEST_CASE("a draw's key and counter are laid out as the header says") {
  const DrawKey key{.seed = 0x299f31d0a4093822, .epoch = 0x13198a2e, .index = 0xa30843f6a88, .occurrence = 0x85d3};
  DrawStream stream(key, 0x7344);
  stream.bits();
  const uint64_t second = stream.bits();  // draw number 1
  const PhiloxBlock out = philox4x32_10({{0x843f6a88, 0x85d30a30, 0x13198a2e, 0x00017344}}, 0xa4093822, 0x299f31d0);
  CHECK(second == (static_cast<uint64_t>(out.word[1]) << 32 | out.word[0]));
  CHECK(stream.next_draw() == 2);
}

TEST_CASE("every part of the key matters") {
  const DrawKey base{.seed = 1, .epoch = 2, .index = 3, .occurrence = 4};
  std::vector<uint64_t> seen = {DrawStream(base, 5).bits(), DrawStream(base, 6).bits()};
  for (int part = 0; part < 4; ++part) {
    DrawKey other = base;
    if (part == 0) other.seed ^= uint64_t{1} << 40;
    if (part == 1) other.epoch ^= 1U << 31;
    if (part == 2) other.index ^= uint64_t{1} << 47;
    if (part == 3) other.occurrence ^= 1U << 15;
    seen.push_back(DrawStream(other, 5).bits());
  }
  std::sort(seen.begin(), seen.end());
  CHECK(std::unique(seen.begin(), seen.end()) == seen.end());
}

TEST_CASE("uniform numbers are in range, on the 2^-53 grid, and even") {
  DrawStream stream({.seed = kSeed}, 0);
  std::vector<int> histogram(64, 0);
  double sum = 0;
  constexpr int kCount = 64'000;
  for (int i = 0; i < kCount; ++i) {
    const double u = stream.uniform01();
    REQUIRE(u >= 0);
    REQUIRE(u < 1);
    REQUIRE(u * 0x1p53 == std::floor(u * 0x1p53));
    ++histogram[static_cast<size_t>(u * 64)];
    sum += u;
  }
  CHECK(std::fabs(sum / kCount - 0.5) < 4 * 0.2887 / std::sqrt(kCount));
  double chi = 0;
  for (const int n : histogram) chi += (n - 1000.0) * (n - 1000.0) / 1000.0;
  CHECK(chi < 63 + 5 * std::sqrt(2.0 * 63));
  CHECK(chi > 63 - 5 * std::sqrt(2.0 * 63));
}

TEST_CASE("below(n) is multiply and shift of 64 bits, and reaches every value") {
  for (const uint32_t n : {1U, 2U, 3U, 10U, 1000U, 0xffffffffU}) {
    DrawStream bits({.seed = n}, 0);
    DrawStream stream({.seed = n}, 0);
    for (int i = 0; i < 1000; ++i) {
      const auto expected = static_cast<uint32_t>((static_cast<long double>(bits.bits()) * n) / 0x1p64L);
      const uint32_t got = stream.below(n);
      REQUIRE(got < n);
      REQUIRE(got == expected);
    }
  }
  DrawStream stream({.seed = kSeed}, 1);
  std::vector<int> counts(7, 0);
  for (int i = 0; i < 7000; ++i) ++counts[stream.below(7)];
  for (const int n : counts) CHECK(std::abs(n - 1000) < 150);
}

TEST_CASE("bernoulli: p = 0 never, p = 1 always, and as often as p says") {
  DrawStream stream({.seed = kSeed}, 2);
  int hits = 0;
  for (int i = 0; i < 20'000; ++i) {
    REQUIRE_FALSE(stream.bernoulli(0.0));
    REQUIRE(stream.bernoulli(1.0));
    hits += stream.bernoulli(0.3) ? 1 : 0;
  }
  CHECK(std::abs(hits - 6000) < 5 * 65);
}

TEST_CASE("permutations are permutations, all equally likely") {
  std::vector<int> counts(24, 0);
  for (uint64_t index = 0; index < 24'000; ++index) {
    DrawStream stream({.seed = kSeed, .index = index}, 0);
    uint8_t order[4];
    stream.permutation(order, 4);
    CHECK(stream.next_draw() == 3);
    int rank = 0;
    for (int i = 0; i < 4; ++i) {
      int smaller = 0;
      for (int j = i + 1; j < 4; ++j) smaller += order[j] < order[i] ? 1 : 0;
      rank = rank * (4 - i) + smaller;
    }
    ++counts[static_cast<size_t>(rank)];
  }
  for (const int n : counts) CHECK(std::abs(n - 1000) < 160);
}

TEST_CASE("exp, log, sin and cos are as accurate as the header says") {
  if (sizeof(long double) <= sizeof(double)) {
    MESSAGE("no wider type to compare with");
    return;
  }
  const auto exp_l = [](long double x) { return std::exp(x); };
  const auto log_l = [](long double x) { return std::log(x); };
  const auto sin_l = [](long double x) { return std::sin(x); };
  const auto cos_l = [](long double x) { return std::cos(x); };
  const double exp_worst =
      std::max(worst_ulps(-700, 700, penstock::draw_exp, exp_l), worst_ulps(-1, 1, penstock::draw_exp, exp_l));
  const double log_worst =
      std::max({worst_ulps(0.5, 2, penstock::draw_log, log_l), worst_ulps(1e-300, 1, penstock::draw_log, log_l),
                worst_ulps(1, 1e300, penstock::draw_log, log_l), worst_ulps(0.99, 1.01, penstock::draw_log, log_l)});
  const double sin_worst =
      std::max({worst_ulps(-4, 4, penstock::draw_sin, sin_l), worst_ulps(-1e6, 1e6, penstock::draw_sin, sin_l)});
  const double cos_worst =
      std::max({worst_ulps(-4, 4, penstock::draw_cos, cos_l), worst_ulps(-1e6, 1e6, penstock::draw_cos, cos_l)});
  std::printf("largest errors in ulp (seed %llu): exp %.3f log %.3f sin %.3f cos %.3f\n",
              static_cast<unsigned long long>(kSeed), exp_worst, log_worst, sin_worst, cos_worst);
  CHECK(exp_worst < 1);
  CHECK(log_worst < 1);
  CHECK(sin_worst < 1.5);
  CHECK(cos_worst < 1.5);
  // Close to multiples of pi/2, where reduction is hard.
  for (int n = 1; n < 100'000; n += 7) {
    const double x = n * 1.5707963267948966;
    REQUIRE(ulps(penstock::draw_sin(x), std::sin(static_cast<long double>(x))) < 1.5);
    REQUIRE(ulps(penstock::draw_cos(x), std::cos(static_cast<long double>(x))) < 1.5);
  }
}

TEST_CASE("exact values of the functions") {
  CHECK(penstock::draw_exp(0) == 1);
  CHECK(penstock::draw_log(1) == 0);
  CHECK(penstock::draw_sin(0) == 0);
  CHECK(penstock::draw_cos(0) == 1);
  CHECK(penstock::draw_exp(-800) == 0);
  CHECK(std::isinf(penstock::draw_exp(800)));
  CHECK(std::isfinite(penstock::draw_exp(709)));
  CHECK(penstock::draw_exp(-708) > 0);
}

TEST_CASE("round_half_even is Python's round") {
  const double cases[][2] = {{0.5, 0},          {1.5, 2},   {2.5, 2},   {3.5, 4}, {2.4999999999999996, 2},
                             {-0.5, 0},         {-1.5, -2}, {-2.5, -2}, {7, 7},   {0.49999999999999994, 0},
                             {1e15 + 0.5, 1e15}};
  for (const auto& c : cases) CHECK(penstock::round_half_even(c[0]) == c[1]);
  std::mt19937_64 random(kSeed);
  std::uniform_real_distribution<double> uniform(-1000, 1000);
  for (int i = 0; i < 100'000; ++i) {
    const double x = std::floor(uniform(random) * 8) / 8;
    REQUIRE(penstock::round_half_even(x) == std::nearbyint(x));
  }
}
