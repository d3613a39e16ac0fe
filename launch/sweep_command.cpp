// `penstock sweep`: a job on a cluster for all combinations of some keys' values.
//
//   penstock sweep job.yaml cluster.yaml --profile p.json loader.threads=1..64x2 splits.train.batch_size=128,256
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>

#include "launch/command.h"
#include "launch/plan_input.h"
#include "runtime/base/error.h"
#include "runtime/base/json_text.h"

namespace penstock {
namespace {

constexpr size_t kMostPoints = 100'000;

struct Axis {
  std::string key;
  std::vector<std::string> values;
};

// Digits, and two dots behind them: a path may begin with two dots.
bool is_range(const std::string& text) {
  const size_t dots = text.find("..");
  if (dots == std::string::npos || dots == 0) return false;
  return text.find_first_not_of("-0123456789") == dots;
}

// "1..64": all whole numbers; "1..64+3": every third; "1..64x2": doubling.
std::vector<std::string> range_of(const std::string& text, const std::string& whole) {
  const auto refuse = [&] {
    throw Error(ErrorKind::usage, "'" + whole + "' is no range",
                "loader.threads=1..8, =1..64+3 (in steps of 3) or =1..64x2 (doubling)");
  };
  const auto number = [&](const std::string& part) {
    int64_t value = 0;
    const auto read = std::from_chars(part.data(), part.data() + part.size(), value);
    if (read.ec != std::errc() || read.ptr != part.data() + part.size()) refuse();
    return value;
  };
  const size_t dots = text.find("..");
  const size_t mark = text.find_first_of("+x", dots + 2);
  const int64_t first = number(text.substr(0, dots));
  const int64_t last = number(text.substr(dots + 2, mark == std::string::npos ? std::string::npos : mark - dots - 2));
  const int64_t step = mark == std::string::npos ? 1 : number(text.substr(mark + 1));
  const bool doubling = mark != std::string::npos && text[mark] == 'x';
  if (last < first || step < (doubling ? 2 : 1) || (doubling && first < 1)) refuse();
  std::vector<std::string> values;
  for (int64_t value = first; value <= last && values.size() <= kMostPoints;
       value = doubling ? value * step : value + step) {
    values.push_back(std::to_string(value));
  }
  return values;
}

std::vector<std::string> values_of(const std::string& text, const std::string& whole) {
  if (is_range(text)) return range_of(text, whole);
  std::vector<std::string> values;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    values.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return values;
}

// An override of several values is an axis; values in brackets or quotes are one.
std::vector<Axis> axes_of(std::vector<std::string>& overrides) {
  std::vector<Axis> axes;
  std::erase_if(overrides, [&](const std::string& text) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos) return false;
    const std::string value = text.substr(equals + 1);
    const bool one = value.empty() || value.find_first_of("[{\"'") != std::string::npos;
    if (one || (value.find(',') == std::string::npos && !is_range(value))) return false;
    axes.push_back({text.substr(0, equals), values_of(value, text)});
    return true;
  });
  return axes;
}

int sweep(const PlanArguments& given) {
  PlanArguments arguments = given;
  const std::vector<Axis> axes = axes_of(arguments.overrides);
  size_t points = 1;
  for (const Axis& axis : axes) {
    points *= axis.values.size();
    if (points > kMostPoints)
      throw Error(ErrorKind::usage, "more than " + std::to_string(kMostPoints) + " points", "sweep fewer values");
  }
  if (axes.empty()) {
    throw Error(ErrorKind::usage, "nothing is swept",
                "give a key several values: loader.threads=1..8 or splits.train.batch_size=128,256");
  }
  const std::vector<WhatIf> what_ifs = what_ifs_of(arguments);
  const bool shows =
      !arguments.quiet && ::isatty(STDERR_FILENO) == 1 && (arguments.json || ::isatty(STDOUT_FILENO) == 0);
  nlohmann::json all = nlohmann::json::array();
  if (!arguments.json) {
    for (const Axis& axis : axes) std::printf("%s\t", axis.key.c_str());
    std::printf("images_per_s\thalf_width_95\tstalled\twait_p99_ms\tthreads_busy\tbusiest_link\n");
  }
  const auto named = [](const std::vector<std::string>& keys) {
    return std::set<std::string>(keys.begin(), keys.end());
  };
  std::set<std::string> by_hand;  // in any of the points
  bool failed = false;
  size_t impossible = 0;
  for (size_t point = 0; point < points; ++point) {
    std::vector<std::string> overrides;
    nlohmann::json keys = nlohmann::json::object();
    std::string row;
    size_t rest = point;
    for (size_t a = axes.size(); a-- > 0;) {
      const std::string& value = axes[a].values[rest % axes[a].values.size()];
      rest /= axes[a].values.size();
      overrides.insert(overrides.begin(), axes[a].key + "=" + value);
      keys[axes[a].key] = value;
      row = value + "\t" + row;
    }
    Prediction p;
    try {
      const PlanInput input = plan_input(arguments, overrides);
      by_hand.merge(named(entered_by_hand(input)));
      p = predict(fleet_of(input, what_ifs), {.seeds = arguments.seeds});
    } catch (const Error& error) {
      // A point that cannot be says so, and the others go on; a mistake in all of them is one.
      p.failure = error.message().substr(0, error.message().find('\n'));
      ++impossible;
      if (impossible == points) throw;
    }
    failed = failed || !p.failure.empty();
    if (arguments.json) {
      all.push_back({{"keys", keys}, {"prediction", to_json(p)}});
    } else {
      std::printf("%s%.1f\t%.1f\t%.4f\t%.2f\t%.3f\t%.3f%s%s\n", row.c_str(), p.images_per_s.mean,
                  p.images_per_s.half_width, p.stalled.mean, static_cast<double>(p.waits.quantile(0.99)) * 1e-6,
                  p.loaders_busy, p.busiest_link, p.failure.empty() ? "" : "\t", p.failure.c_str());
      std::fflush(stdout);
    }
    if (shows) std::fprintf(stderr, "\r\033[Kpenstock: %zu of %zu points", point + 1, points);
  }
  if (shows) std::fputs("\r\033[K", stderr);
  if (arguments.json) {
    const nlohmann::json json = {{"points", all}, {"entered_by_hand", by_hand}};
    std::printf("%s\n", json_text_replacing(json).c_str());
  } else if (!arguments.quiet) {
    print_entered_by_hand(stderr, {by_hand.begin(), by_hand.end()});
  }
  return failed ? 1 : 0;
}

}  // namespace

void add_sweep(CLI::App& app, Chosen& chosen) {
  auto arguments = std::make_shared<PlanArguments>();
  CLI::App* command = app.add_subcommand("sweep", "a job on a cluster for all combinations of some keys' values");
  add_plan_arguments(*command, *arguments, true);
  command->footer(
      "An override with several values is swept (program.step_ms is of a batch, whatever its size): "
      "loader.threads=1..8, nodes.cpu.count=1..64x2, "
      "splits.train.batch_size=128,256");
  command->callback([=, &chosen] { chosen.run = [=] { return sweep(*arguments); }; });
}

}  // namespace penstock
