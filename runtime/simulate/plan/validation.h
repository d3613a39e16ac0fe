// Predictions against what was measured: errors of each point, and whether they keep their bounds.
//
//   const Validation v = validate(json_lines(predictions, "predictions.jsonl"), json_lines(reports, "reports.jsonl"));
//   v.mean_error, v.worst_error, v.wrong_order;  broken_limits(v, limits)
//
// A prediction is what `penstock simulate --json` prints, a report what `penstock run --json` prints, or an object with
//   images_per_s and stalled; several reports of one name are repetitions. Where there are several points, each has its
//   `name`. Points whose two slowest parts alone are within 5 % of each other stand at a knee: there a small error of
//   either decides which one limits, so they are counted apart.
// Order: two points are in the wrong order where the 95 % intervals of what was measured do not overlap and the
//   predictions say the opposite.
// Thread-safety: pure functions. Failure: Error(usage) for what is neither, and for names without their counterpart.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "runtime/simulate/plan/prediction.h"

namespace penstock {

struct ValidationPoint {
  std::string name;
  double predicted = 0;  // images a second
  double predicted_stalled = 0;
  Estimate measured;
  Estimate measured_stalled;
  int64_t repetitions = 0;
  double error = 0;          // predicted / measured - 1
  double stalled_error = 0;  // in points: 0.01 is one in a hundred
  double naive_error = 0;
  bool at_knee = false;
};

struct Validation {
  std::vector<ValidationPoint> points;
  // Over the points that are not at a knee, and over those that are.
  double mean_error = 0;
  double worst_error = 0;
  double worst_stalled_error = 0;
  double knee_mean_error = 0;
  double knee_worst_error = 0;
  // Over all points.
  double naive_mean_error = 0;
  double naive_worst_error = 0;
  int64_t pairs = 0;  // that were measured apart
  std::vector<std::string> wrong_order;
};

struct ValidationLimits {
  double mean_error = 0.05;
  double worst_error = 0.10;
  double stalled_error = 0.03;
  double half_widths = 0;  // so many half-widths of what was measured are allowed on top of mean_error
};

Validation validate(const std::vector<nlohmann::json>& predictions, const std::vector<nlohmann::json>& reports);
// What is not kept, a sentence each; empty: everything is.
std::vector<std::string> broken_limits(const Validation& validation, const ValidationLimits& limits);

// Reads the text of a file, called `name`, that holds one JSON object, or one in each line. Error(usage) names the
// line.
std::vector<nlohmann::json> json_lines(const std::string& text, const std::string& name);

}  // namespace penstock
