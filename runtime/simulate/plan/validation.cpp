#include "runtime/simulate/plan/validation.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "runtime/base/error.h"
#include "runtime/base/json_text.h"
#include "runtime/simulate/plan/figure_text.h"

namespace penstock {
namespace {

using Json = nlohmann::json;

constexpr double kKnee = 0.05;

struct Measured {
  std::vector<double> images_per_s;
  std::vector<double> stalled;
};

// The figures in a report: its own, or in a job's report those of `split`, or of the first split where none is named.
const Json* figures_of(const Json& report, const std::string& split) {
  if (report.contains("images_per_s")) return &report;
  const auto splits = report.find("splits");
  if (splits == report.end() || !splits->is_object() || splits->empty()) return nullptr;
  const auto named = splits->find(split);
  if (named != splits->end()) return &*named;
  return split.empty() ? &*splits->begin() : nullptr;
}

double number(const Json& object, const char* key) {
  const auto at = object.find(key);
  return at != object.end() && at->is_number() ? at->get<double>() : -1;
}

void add(Measured& measured, const Json& report, const std::string& split, const std::string& name) {
  const Json* const figures = figures_of(report, split);
  const double rate = figures == nullptr ? -1 : number(*figures, "images_per_s");
  double stalled = figures == nullptr ? -1 : number(*figures, "stalled");
  if (stalled < 0 && figures != nullptr) stalled = number(*figures, "wait_fraction");
  if (rate <= 0 || stalled < 0) {
    throw Error(ErrorKind::usage,
                "'" + name + "' is no report of a run: it has no images_per_s, or not how long programs waited",
                "name what `penstock run --json` printed");
  }
  measured.images_per_s.push_back(rate);
  measured.stalled.push_back(stalled);
}

std::string name_of_point(const Json& object, size_t number, size_t count) {
  if (object.contains("name") && object["name"].is_string()) return object["name"].get<std::string>();
  return count == 1 ? "the run" : "point " + std::to_string(number);
}

bool at_knee(const Json& naive) {
  if (!naive.contains("parts") || !naive["parts"].is_array()) return false;
  std::vector<double> rates;
  double nics = INFINITY;  // of whichever machines: both ends of the same bytes are one part
  for (const Json& part : naive["parts"]) {
    const bool of_nics = part.value("name", "").starts_with("the NICs");
    const double rate = number(part, "images_per_s");
    if (of_nics) nics = std::min(nics, rate);
    if (!of_nics) rates.push_back(rate);
  }
  if (nics < INFINITY) rates.push_back(nics);
  if (rates.size() < 2) return false;
  std::partial_sort(rates.begin(), rates.begin() + 2, rates.end());
  return rates[1] <= rates[0] * (1 + kKnee);
}

}  // namespace

std::vector<Json> json_lines(const std::string& text, const std::string& name) {
  const Json whole = parse_json_or_nothing(text);
  if (whole.is_object()) return {whole};
  std::vector<Json> lines;
  size_t number = 1;
  for (size_t at = 0; at < text.size(); ++number) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    at = end + 1;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    Json one = parse_json_or_nothing(line);
    if (!one.is_object()) {
      throw Error(ErrorKind::usage, "'" + name + "', line " + std::to_string(number) + ": this is no JSON object",
                  "name a file with one JSON object, or one in each line");
    }
    lines.push_back(std::move(one));
  }
  if (lines.empty()) throw Error(ErrorKind::usage, "'" + name + "' is empty");
  return lines;
}

Validation validate(const std::vector<Json>& predictions, const std::vector<Json>& reports) try {
  std::map<std::string, Measured> measured;
  std::map<std::string, std::string> split_of;
  for (size_t i = 0; i < predictions.size(); ++i) {
    split_of[name_of_point(predictions[i], i, predictions.size())] = predictions[i].value("split", "");
  }
  for (size_t i = 0; i < reports.size(); ++i) {
    std::string name = name_of_point(reports[i], i, 1);
    if (predictions.size() == 1 && !reports[i].contains("name")) name = split_of.begin()->first;
    add(measured[name], reports[i], split_of[name], name);
  }
  Validation out;
  for (size_t i = 0; i < predictions.size(); ++i) {
    const std::string name = name_of_point(predictions[i], i, predictions.size());
    const auto its = measured.find(name);
    const bool twice = std::any_of(out.points.begin(), out.points.end(),
                                   [&](const ValidationPoint& point) { return point.name == name; });
    if (twice)
      throw Error(ErrorKind::usage, "'" + name + "' was predicted twice", "give every prediction a name of its own");
    if (its == measured.end()) throw Error(ErrorKind::usage, "'" + name + "' was predicted, and no report is of it");
    const Json prediction = predictions[i].value("prediction", Json::object());
    const double predicted = number(prediction.value("images_per_s", Json::object()), "mean");
    if (predicted <= 0) {
      throw Error(ErrorKind::usage, "'" + name + "' holds no prediction",
                  "name what `penstock simulate --json` printed");
    }
    if (prediction.contains("failure") || number(prediction.value("stalled", Json::object()), "mean") < 0) {
      throw Error(ErrorKind::usage, "'" + name + "' holds a prediction of a job that ends, or half of one",
                  "take one of a job that goes on");
    }
    ValidationPoint point;
    point.name = name;
    point.predicted = predicted;
    point.predicted_stalled = number(prediction.value("stalled", Json::object()), "mean");
    point.measured = estimate(its->second.images_per_s);
    point.measured_stalled = estimate(its->second.stalled);
    point.repetitions = std::ssize(its->second.images_per_s);
    point.error = predicted / point.measured.mean - 1;
    point.stalled_error = point.predicted_stalled - point.measured_stalled.mean;
    const Json naive = prediction.value("naive", Json::object());
    point.naive_error = number(naive, "images_per_s") / point.measured.mean - 1;
    point.at_knee = at_knee(naive);
    out.points.push_back(point);
    measured.erase(its);
  }
  if (!measured.empty()) {
    throw Error(ErrorKind::usage, "'" + measured.begin()->first + "' was measured, and nothing predicts it");
  }

  double points = 0, knees = 0;
  for (const ValidationPoint& point : out.points) {
    const double error = std::abs(point.error), naive = std::abs(point.naive_error);
    out.naive_mean_error += naive / static_cast<double>(out.points.size());
    out.naive_worst_error = std::max(out.naive_worst_error, naive);
    (point.at_knee ? knees : points) += 1;
    (point.at_knee ? out.knee_mean_error : out.mean_error) += error;
    double& worst = point.at_knee ? out.knee_worst_error : out.worst_error;
    worst = std::max(worst, error);
    if (!point.at_knee) out.worst_stalled_error = std::max(out.worst_stalled_error, std::abs(point.stalled_error));
  }
  if (points > 0) out.mean_error /= points;
  if (knees > 0) out.knee_mean_error /= knees;
  for (size_t a = 0; a < out.points.size(); ++a) {
    for (size_t b = a + 1; b < out.points.size(); ++b) {
      const ValidationPoint &one = out.points[a], &other = out.points[b];
      if (one.repetitions < 2 || other.repetitions < 2) continue;  // nothing is known of their intervals
      const double apart = std::abs(one.measured.mean - other.measured.mean);
      if (apart <= one.measured.half_width + other.measured.half_width) continue;
      ++out.pairs;
      if ((one.measured.mean < other.measured.mean) == (one.predicted < other.predicted)) continue;
      out.wrong_order.push_back(one.name + " and " + other.name);
    }
  }
  return out;
} catch (const Json::exception&) {
  throw Error(ErrorKind::usage, "a prediction or a report holds something else where numbers or names are wanted",
              "name what `penstock simulate --json` and `penstock run --json` printed");
}

std::vector<std::string> broken_limits(const Validation& v, const ValidationLimits& limits) {
  std::vector<std::string> broken;
  double allowed = limits.mean_error;
  double points = 0, width = 0;
  for (const ValidationPoint& point : v.points) {
    if (point.at_knee) continue;
    points += 1;
    width += point.measured.half_width / point.measured.mean;
  }
  if (points == 0) broken.push_back("every point is at a knee, where predictions are not held to these bounds");
  if (points > 0) allowed += limits.half_widths * width / points;
  if (v.mean_error > allowed)
    broken.push_back("the mean error is " + percent_text(v.mean_error) + ", more than " + percent_text(allowed));
  if (v.worst_error > limits.worst_error) {
    broken.push_back("the worst error is " + percent_text(v.worst_error) + ", more than " +
                     percent_text(limits.worst_error));
  }
  if (v.worst_stalled_error > limits.stalled_error) {
    broken.push_back("the worst error of the share of time stalled is " + percent_text(v.worst_stalled_error) +
                     ", more than " + percent_text(limits.stalled_error));
  }
  if (!v.wrong_order.empty()) {
    broken.push_back(std::to_string(v.wrong_order.size()) + " of " + std::to_string(v.pairs) +
                     " pairs are in the wrong order: " + v.wrong_order.front() +
                     (v.wrong_order.size() > 1 ? ", …" : ""));
  }
  return broken;
}

}  // namespace penstock
