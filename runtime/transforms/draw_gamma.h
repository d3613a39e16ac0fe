// Gamma variates from a stream of draws, for Beta and Dirichlet weights: the same bits on any machine.
//
//   const double a = draw_gamma(stream, alpha), b = draw_gamma(stream, alpha);
//   const double lambda = a / (a + b);                                          // Beta(alpha, alpha)
//
// Method: Marsaglia and Tsang, "A simple method for generating gamma variables" (2000), with normal variates by Box and
//   Muller. It takes as many draws as it needs, so a transform calls it after its other draws, or last of all.
// Domain: shape from 1e-3 to 1e6. Below 1 a variate can be 0. Thread-safety: as DrawStream.
#pragma once

#include <cmath>

#include "runtime/transforms/draw.h"

namespace penstock {

// One of the two normal variates that two draws make.
inline double draw_normal(DrawStream& stream) noexcept {
  const double u = 1.0 - stream.uniform01();  // in (0, 1]
  const double angle = 6.283185307179586 * stream.uniform01();
  return std::sqrt(-2.0 * draw_log(u)) * draw_cos(angle);
}

inline double draw_gamma(DrawStream& stream, double shape) noexcept {
  double factor = 1;
  if (shape < 1) {
    factor = draw_exp(draw_log(1.0 - stream.uniform01()) / shape);
    shape += 1;
  }
  const double d = shape - 1.0 / 3.0;
  const double c = 1.0 / std::sqrt(9.0 * d);
  for (int attempt = 0; attempt < 100; ++attempt) {  // each fails less than once in 20 times
    const double x = draw_normal(stream);
    const double root = 1.0 + c * x;
    const double u = 1.0 - stream.uniform01();
    if (root <= 0) continue;
    const double v = root * root * root;
    if (draw_log(u) < 0.5 * x * x + d - d * v + d * draw_log(v)) return factor * (d * v);
  }
  return factor * d;
}

}  // namespace penstock
