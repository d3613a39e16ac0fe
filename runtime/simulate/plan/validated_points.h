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

// clang-format off
inline constexpr std::array<ValidatedPoint, 40> kValidatedPoints{{
    {"loaders-1", 2, 1, 2, 49.7, 50.6},
    {"loaders-2", 2, 2, 2, 98.3, 99.5},
    {"loaders-3", 2, 3, 2, 139.3, 138.5},
    {"loaders-4", 2, 4, 2, 173.1, 178.4},
    {"loaders-5", 2, 5, 2, 201.6, 199.3},
    {"loaders-6", 2, 6, 2, 216.4, 216.3},
    {"loaders-7", 2, 7, 2, 225.0, 223.3},
    {"loaders-8", 2, 8, 2, 228.9, 226.5},
    {"loaders-10", 2, 10, 2, 232.5, 228.8},
    {"loaders-12", 2, 12, 2, 234.4, 229.1},
    {"threads-1", 2, 2, 1, 49.1, 50.1},
    {"threads-3", 2, 2, 3, 137.8, 138.1},
    {"threads-4", 2, 2, 4, 173.5, 175.7},
    {"threads-6", 2, 2, 6, 222.5, 225.9},
    {"threads-8", 2, 2, 8, 234.1, 231.5},
    {"batch-4", 2, 4, 2, 120.1, 121.8},
    {"batch-8", 2, 4, 2, 155.9, 156.5},
    {"batch-32", 2, 4, 2, 186.5, 190.0},
    {"batch-64", 2, 4, 2, 194.6, 194.3},
    {"prefetch-1", 2, 4, 2, 150.7, 157.3},
    {"prefetch-2", 2, 4, 2, 172.7, 179.2},
    {"prefetch-4", 2, 4, 2, 186.6, 190.2},
    {"prefetch-8", 2, 4, 2, 190.6, 193.2},
    {"steps-0.0", 2, 8, 2, 230.9, 225.0},
    {"steps-0.5", 2, 8, 2, 187.7, 189.7},
    {"one-trainer", 1, 4, 2, 156.2, 154.7},
    {"four-trainers", 4, 8, 2, 303.5, 307.4},
    {"no-barrier", 2, 5, 2, 230.0, 228.7},
    {"throttled", 2, 4, 2, 138.3, 148.3},
    {"throttled-slack", 2, 4, 2, 122.0, 110.2},
    {"stopped", 2, 4, 2, 153.9, 157.6},
    {"killed", 2, 4, 2, 150.6, 156.6},
    {"killed-two-of-six", 2, 6, 2, 185.4, 187.5},
    {"heavy-tail", 2, 4, 2, 155.5, 149.5},
    {"heavy-tail-slack", 2, 8, 2, 150.9, 143.1},
    {"link-100", 1, 2, 4, 78.2, 77.4},
    {"link-200", 1, 2, 4, 136.4, 134.0},
    {"link-400", 1, 2, 4, 160.9, 156.2},
    {"forty-ranks", 4, 36, 1, 512.9, 548.0},
    {"twenty-four-loaders", 8, 24, 1, 291.3, 279.4},
}};
// clang-format on

}  // namespace penstock
