#include "runtime/simulate/portable_math.h"

#include <bit>
#include <cmath>
#include <cstdint>

namespace penstock {

namespace {

constexpr double kLn2High = 0x1.62e42fee00000p-1;  // its last 21 bits are zero: multiples up to 2^20 are exact
constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
constexpr double kLog2E = 0x1.71547652b82fep+0;
constexpr int kMantissaBits = 52;
constexpr int64_t kBias = 1023;

double power_of_two(int64_t exponent) {
  return std::bit_cast<double>(static_cast<uint64_t>(exponent + kBias) << kMantissaBits);
}

// c[0] + c[1] x + c[2] x^2 + ...
template <int N>
double polynomial(const double (&c)[N], double x) {
  double sum = c[N - 1];
  for (int i = N - 2; i >= 0; --i) sum = sum * x + c[i];
  return sum;
}

}  // namespace

double portable_sqrt(double x) {
  return std::sqrt(x);  // the one function of the library that IEEE 754 says the last bit of
}

// ln(m 2^e) = e ln 2 + 2 atanh((m - 1) / (m + 1)), m within a factor of sqrt(2) around 1.
double portable_ln(double x) {
  const auto bits = std::bit_cast<uint64_t>(x);
  int64_t exponent = static_cast<int64_t>(bits >> kMantissaBits) - kBias;
  constexpr uint64_t kMantissa = (uint64_t{1} << kMantissaBits) - 1;
  double m = std::bit_cast<double>((bits & kMantissa) | (static_cast<uint64_t>(kBias) << kMantissaBits));
  if (m > 1.4142135623730951) m *= 0.5, ++exponent;
  const double s = (m - 1) / (m + 1);
  const double square = s * s;  // at most 0.0295
  double sum = 0;
  for (int n = 21; n >= 3; n -= 2) sum = (sum + 1.0 / n) * square;
  const auto e = static_cast<double>(exponent);
  return e * kLn2High + (2 * s + (2 * s * sum + e * kLn2Low));
}

// exp(x) = 2^k exp(r), |r| <= ln(2) / 2, by its series.
double portable_exp(double x) {
  const double scaled = x * kLog2E;
  const auto k = static_cast<int64_t>(scaled + (scaled < 0 ? -0.5 : 0.5));
  const auto whole = static_cast<double>(k);
  const double r = (x - whole * kLn2High) - whole * kLn2Low;
  double sum = 1;
  for (int n = 17; n >= 1; --n) sum = 1 + sum * r / n;
  // In two steps, since 2^k may be beyond a double's range where the product is not.
  const int64_t half = k / 2;
  return sum * power_of_two(half) * power_of_two(k - half);
}

// Acklam's rational approximation (relative error 1.15e-9).
double portable_normal_quantile(double chance) {
  static constexpr double kCentralTop[] = {2.506628277459239e+00,  -3.066479806614716e+01, 1.383577518672690e+02,
                                           -2.759285104469687e+02, 2.209460984245205e+02,  -3.969683028665376e+01};
  static constexpr double kCentralBottom[] = {1,
                                              -1.328068155288572e+01,
                                              6.680131188771972e+01,
                                              -1.556989798598866e+02,
                                              1.615858368580409e+02,
                                              -5.447609879822406e+01};
  static constexpr double kTailTop[] = {2.938163982698783e+00,  4.374664141464968e+00,  -2.549732539343734e+00,
                                        -2.400758277161838e+00, -3.223964580411365e-01, -7.784894002430293e-03};
  static constexpr double kTailBottom[] = {1, 3.754408661907416e+00, 2.445134137142996e+00, 3.224671290700398e-01,
                                           7.784695709041462e-03};
  constexpr double kTail = 0.02425;
  const auto tail = [&](double p) {
    const double q = portable_sqrt(-2 * portable_ln(p));
    return polynomial(kTailTop, q) / polynomial(kTailBottom, q);
  };
  if (chance < kTail) return tail(chance);
  if (chance > 1 - kTail) return -tail(1 - chance);
  const double q = chance - 0.5;
  return q * polynomial(kCentralTop, q * q) / polynomial(kCentralBottom, q * q);
}

}  // namespace penstock
