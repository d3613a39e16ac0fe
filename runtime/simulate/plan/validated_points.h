// Points by which this simulation was validated: predicted before, then run. Written by bench/predict/points.py from
// bench/predict/results; do not edit.
#pragma once

#include <array>

namespace penstock {

struct ValidatedPoint {
  const char* name;
  int trainers;
  int loaders;
  int threads;       // of each loader
  double predicted;  // images a second
  double measured;
};

inline constexpr std::array<ValidatedPoint, 0> kValidatedPoints{};

}  // namespace penstock
