// Logarithm, exponential and normal quantile whose bits are the same with every compiler and C library.
//
//   const double wait = -mean * portable_ln(u);
//
// Purpose: a seed gives one log of a simulated world, byte for byte. IEEE additions, multiplications, divisions and the
//   changes of a double's exponent alone; the build turns contraction off.
// Accuracy: relative 2e-15 for ln and exp, 1e-9 for the quantile; the tests compare.
// Thread-safety: pure functions. Failure: none; arguments outside of the stated ranges give numbers without meaning.
#pragma once

namespace penstock {

double portable_ln(double x);                    // x > 0, no subnormal
double portable_exp(double x);                   // |x| <= 700
double portable_normal_quantile(double chance);  // 0 < chance < 1
double portable_sqrt(double x);                  // exact by IEEE 754

}  // namespace penstock
