"""Writes runtime/simulate/plan/validated_points.h: the points that the planner's trust line and its page know.

    bench/predict/points.py bench/predict/results/2026-11-25-emulated [FOLDER...]"""

import json
import os
import sys

HEADER = """\
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
inline constexpr std::array<ValidatedPoint, %d> kValidatedPoints{{
%s}};
// clang-format on

}  // namespace penstock
"""


def lines(path):
    with open(path) as file:
        return [json.loads(line) for line in file]


def main():
    rows = []
    for folder in sys.argv[1:]:
        measured = {}
        for one in lines(os.path.join(folder, "reports.jsonl")):
            measured.setdefault(one["name"], []).append(one["images_per_s"])
        for one in lines(os.path.join(folder, "predictions.jsonl")):
            rates, fleet = measured[one["name"]], one["fleet"]
            rows.append(f'    {{"{one["name"]}", {fleet["trainers"]}, {fleet["loaders"]}, {fleet["threads"]}, '
                        f'{one["prediction"]["images_per_s"]["mean"]:.1f}, {sum(rates) / len(rates):.1f}}},\n')
    top = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    with open(os.path.join(top, "runtime", "simulate", "plan", "validated_points.h"), "w") as file:
        file.write(HEADER % (len(rows), "".join(rows)))


if __name__ == "__main__":
    main()
