// Elementary functions for draws: the same bits for any compiler, C library and CPU.
//
//   double ratio = draw_exp(stream.uniform(draw_log(0.75), draw_log(4.0 / 3.0)));
//
// Why not libm: its exp, log, sin and cos differ in the last bit between versions and pick FMA code at run time, and
//   one such bit moves a crop by a pixel. Here only +, -, *, / and floor on doubles are used, each of which IEEE 754
//   fixes; the build sets -ffp-contract=off, so nothing is fused (a device compiler needs -fmad=false).
// Accuracy: exp and log below 1 ulp, sin and cos below 1.5 ulp; tests/transforms/draw_test.cpp measures them against
//   80-bit libm.
// Domain: exp: any finite argument with a result that is zero or normal (below -708 it returns 0, above 709 infinity);
//   log: positive normal numbers; sin, cos: |x| <= 2^20. Draws stay far inside these.
// Method: reduction with a two- or three-part constant whose upper parts have trailing zeros, so that k * part is
//   exact; then the Taylor series, whose coefficients are the obvious fractions. Thread-safety: pure functions.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__CUDACC__) || defined(__HIPCC__)
#define PENSTOCK_HD __host__ __device__
#else
#define PENSTOCK_HD
#endif

namespace penstock {

namespace draw_detail {

PENSTOCK_HD inline uint64_t bits_of(double x) noexcept {
  uint64_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

PENSTOCK_HD inline double double_of(uint64_t bits) noexcept {
  double x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// ln 2 and pi/2 in parts; all but the last have at least 20 trailing zero bits.
constexpr double kLn2High = 0x1.62e42feep-1;
constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
constexpr double kHalfPi1 = 0x1.921fb544p+0;
constexpr double kHalfPi2 = 0x1.0b4611a6p-34;
constexpr double kHalfPi3 = 0x1.3198a2e037073p-69;

// sin and cos on [-pi/4, pi/4]; the argument is r + low, low being what did not fit into r.
PENSTOCK_HD inline double sin_small(double r, double low) noexcept {
  const double z = r * r;
  double p = 1.0 / 355687428096000.0;  // 1 / 17!
  p = p * z - 1.0 / 1307674368000.0;
  p = p * z + 1.0 / 6227020800.0;
  p = p * z - 1.0 / 39916800.0;
  p = p * z + 1.0 / 362880.0;
  p = p * z - 1.0 / 5040.0;
  p = p * z + 1.0 / 120.0;
  p = p * z - 1.0 / 6.0;
  // sin(r + low) = sin r + low * cos r, and cos r = 1 - z / 2 is enough for a term this small.
  return r + (r * z * p + low * (1.0 - 0.5 * z));
}

PENSTOCK_HD inline double cos_small(double r, double low) noexcept {
  const double z = r * r;
  double p = -1.0 / 6402373705728000.0;  // -1 / 18!
  p = p * z + 1.0 / 20922789888000.0;
  p = p * z - 1.0 / 87178291200.0;
  p = p * z + 1.0 / 479001600.0;
  p = p * z - 1.0 / 3628800.0;
  p = p * z + 1.0 / 40320.0;
  p = p * z - 1.0 / 720.0;
  p = p * z + 1.0 / 24.0;
  // 1 - z / 2 is rounded; what it lost is added back with the small terms.
  const double half = 0.5 * z;
  const double head = 1.0 - half;
  return head + (((1.0 - head) - half) + (z * z * p - r * low));
}

struct ReducedAngle {
  double r = 0;
  double low = 0;
  unsigned quadrant = 0;
};

PENSTOCK_HD inline ReducedAngle reduce_angle(double x) noexcept {
  const double n = std::floor(x * 0x1.45f306dc9c883p-1 + 0.5);  // 2 / pi
  const double t = x - n * kHalfPi1;
  const double w = n * kHalfPi2;
  const double r = t - w;
  const double lost = n * kHalfPi3 - ((t - r) - w);
  ReducedAngle out;
  out.r = r - lost;
  out.low = (r - out.r) - lost;
  out.quadrant = static_cast<unsigned>(static_cast<int64_t>(n) & 3);
  return out;
}

}  // namespace draw_detail

PENSTOCK_HD inline double draw_exp(double x) noexcept {
  if (x > 709.0) return draw_detail::double_of(0x7ff0000000000000ULL);  // infinity
  if (x < -708.0) return 0.0;
  const double k = std::floor(x * 0x1.71547652b82fep+0 + 0.5);  // 1 / ln 2
  const double high = x - k * draw_detail::kLn2High;
  const double low = k * draw_detail::kLn2Low;
  const double r = high - low;
  const double lost = (high - r) - low;
  double p = 1.0 / 6227020800.0;  // 1 / 13!
  p = p * r + 1.0 / 479001600.0;
  p = p * r + 1.0 / 39916800.0;
  p = p * r + 1.0 / 3628800.0;
  p = p * r + 1.0 / 362880.0;
  p = p * r + 1.0 / 40320.0;
  p = p * r + 1.0 / 5040.0;
  p = p * r + 1.0 / 720.0;
  p = p * r + 1.0 / 120.0;
  p = p * r + 1.0 / 24.0;
  p = p * r + 1.0 / 6.0;
  p = p * r + 0.5;
  const double value = 1.0 + (r + (r * r * p + lost));
  // value is in [0.7, 1.5), so a factor of 2^k keeps it normal over the whole domain.
  const int64_t exponent = static_cast<int64_t>(k);
  const int64_t half = exponent / 2;  // 2^1024 has no double, its halves do
  const double factor_a = draw_detail::double_of(static_cast<uint64_t>(1023 + half) << 52);
  const double factor_b = draw_detail::double_of(static_cast<uint64_t>(1023 + exponent - half) << 52);
  return value * factor_a * factor_b;
}

PENSTOCK_HD inline double draw_log(double x) noexcept {
  // x = 2^k * m with m in [sqrt(1/2), sqrt(2)): adding the distance of 1.0 from sqrt(1/2) carries into the exponent
  // exactly when the significand is above sqrt(2).
  constexpr uint64_t kSqrtHalf = 0x3fe6a09e667f3bcdULL;
  constexpr uint64_t kOne = 0x3ff0000000000000ULL;
  const uint64_t shifted = draw_detail::bits_of(x) + (kOne - kSqrtHalf);
  const double k = static_cast<double>(static_cast<int64_t>(shifted >> 52) - 1023);
  const double m = draw_detail::double_of((shifted & 0x000fffffffffffffULL) + kSqrtHalf);
  const double f = m - 1.0;
  const double s = f / (2.0 + f);
  const double z = s * s;
  // log(1 + f) = 2 atanh(s) = 2 s + s * tail
  double p = 2.0 / 25.0;
  p = p * z + 2.0 / 23.0;
  p = p * z + 2.0 / 21.0;
  p = p * z + 2.0 / 19.0;
  p = p * z + 2.0 / 17.0;
  p = p * z + 2.0 / 15.0;
  p = p * z + 2.0 / 13.0;
  p = p * z + 2.0 / 11.0;
  p = p * z + 2.0 / 9.0;
  p = p * z + 2.0 / 7.0;
  p = p * z + 2.0 / 5.0;
  p = p * z + 2.0 / 3.0;
  const double tail = z * p;
  // 2 s = f - f^2/2 + s f^2/2: the large part, f, enters exactly.
  const double half_square = 0.5 * f * f;
  return k * draw_detail::kLn2High - ((half_square - (s * (half_square + tail) + k * draw_detail::kLn2Low)) - f);
}

PENSTOCK_HD inline double draw_sin(double x) noexcept {
  const draw_detail::ReducedAngle a = draw_detail::reduce_angle(x);
  const double value = (a.quadrant & 1) != 0 ? draw_detail::cos_small(a.r, a.low) : draw_detail::sin_small(a.r, a.low);
  return (a.quadrant & 2) != 0 ? -value : value;
}

PENSTOCK_HD inline double draw_cos(double x) noexcept {
  const draw_detail::ReducedAngle a = draw_detail::reduce_angle(x);
  const double value = (a.quadrant & 1) != 0 ? draw_detail::sin_small(a.r, a.low) : draw_detail::cos_small(a.r, a.low);
  return a.quadrant == 1 || a.quadrant == 2 ? -value : value;
}

// Python's round(): to the nearest integer, halves to even.
PENSTOCK_HD inline double round_half_even(double x) noexcept {
  const double down = std::floor(x);
  const double rest = x - down;  // exact
  if (rest < 0.5) return down;
  if (rest > 0.5) return down + 1.0;
  return std::floor(down * 0.5) * 2.0 == down ? down : down + 1.0;
}

}  // namespace penstock
