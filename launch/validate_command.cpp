// `penstock validate`: how far predictions were from what was measured.
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "launch/command.h"
#include "runtime/base/error.h"
#include "runtime/base/file_system.h"
#include "runtime/base/json_text.h"
#include "runtime/report/joined_report.h"
#include "runtime/simulate/plan/validation.h"

namespace penstock {
namespace {

constexpr size_t kMostReportBytes = size_t{1} << 30;

struct ValidateRequest {
  std::string predictions;
  std::string reports;
  ValidationLimits limits;
  bool json = false;
};

std::string read(const std::string& path) {
  std::vector<std::byte> bytes;
  if (!posix_file_system().read_file(path, kMostReportBytes, bytes)) {
    throw Error(ErrorKind::usage, "'" + path + "' is larger than any report", "name another file");
  }
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

bool is_report(const nlohmann::json& object) {
  return object.contains("images_per_s") || object.contains("splits");
}

// A line each; or what `penstock run --json` printed behind its program's own lines, of JSON or not.
std::vector<nlohmann::json> read_reports(const std::string& path) {
  const std::string text = read(path);
  const nlohmann::json last = printed_report(text);
  try {
    std::vector<nlohmann::json> lines = json_lines(text, path);
    if (!is_report(last) || std::all_of(lines.begin(), lines.end(), is_report)) return lines;
  } catch (const Error&) {
    if (!last.is_object() || !is_report(last)) throw;
  }
  return {last};
}

nlohmann::json to_json(const Validation& v, const std::vector<std::string>& broken) {
  nlohmann::json points = nlohmann::json::array();
  for (const ValidationPoint& p : v.points) {
    points.push_back({{"name", p.name},
                      {"predicted", p.predicted},
                      {"measured", p.measured.mean},
                      {"half_width_95", p.measured.half_width},
                      {"repetitions", p.repetitions},
                      {"error", p.error},
                      {"predicted_stalled", p.predicted_stalled},
                      {"measured_stalled", p.measured_stalled.mean},
                      {"stalled_error", p.stalled_error},
                      {"naive_error", p.naive_error},
                      {"at_knee", p.at_knee}});
  }
  return {{"points", points},
          {"mean_error", v.mean_error},
          {"worst_error", v.worst_error},
          {"worst_stalled_error", v.worst_stalled_error},
          {"knee_mean_error", v.knee_mean_error},
          {"knee_worst_error", v.knee_worst_error},
          {"naive_mean_error", v.naive_mean_error},
          {"naive_worst_error", v.naive_worst_error},
          {"pairs_apart", v.pairs},
          {"wrong_order", v.wrong_order},
          {"broken", broken}};
}

void print(const Validation& v, const std::vector<std::string>& broken) {
  std::printf("%-24s %10s %20s %7s %17s %7s %7s\n", "point", "predicted", "measured images/s", "error", "stalled",
              "error", "naive");
  for (const ValidationPoint& p : v.points) {
    std::printf("%-24s %10.1f %10.1f ± %-7.1f %+6.1f%% %7.3f (%.3f) %+6.3f %+6.0f%%%s\n", p.name.c_str(), p.predicted,
                p.measured.mean, p.measured.half_width, 100 * p.error, p.predicted_stalled, p.measured_stalled.mean,
                p.stalled_error, 100 * p.naive_error, p.at_knee ? "  at a knee" : "");
  }
  std::printf(
      "throughput: mean error %.1f %%, worst %.1f %%; stalled: worst %.1f points; order: %lld of %lld pairs right\n",
      100 * v.mean_error, 100 * v.worst_error, 100 * v.worst_stalled_error,
      static_cast<long long>(v.pairs - std::ssize(v.wrong_order)), static_cast<long long>(v.pairs));
  if (v.knee_worst_error > 0) {
    std::printf("at knees: mean error %.1f %%, worst %.1f %%\n", 100 * v.knee_mean_error, 100 * v.knee_worst_error);
  }
  std::printf("the least of the rates alone: mean error %.1f %%, worst %.1f %%\n", 100 * v.naive_mean_error,
              100 * v.naive_worst_error);
  for (const std::string& text : broken) std::printf("not kept: %s\n", text.c_str());
  if (broken.empty()) std::printf("all bounds are kept\n");
}

int validate_files(const ValidateRequest& request) {
  const Validation v =
      validate(json_lines(read(request.predictions), request.predictions), read_reports(request.reports));
  const std::vector<std::string> broken = broken_limits(v, request.limits);
  if (request.json) {
    std::printf("%s\n", json_text_replacing(to_json(v, broken)).c_str());
  } else {
    print(v, broken);
  }
  return broken.empty() ? 0 : 1;
}

}  // namespace

void add_validate(CLI::App& app, Chosen& chosen) {
  auto request = std::make_shared<ValidateRequest>();
  CLI::App* command = app.add_subcommand(
      "validate", "how far predictions were from what was measured; exit code 1 where bounds are broken");
  command
      ->add_option("predictions", request->predictions,
                   "what `penstock simulate --json` printed; several: a line each, with a name")
      ->required()
      ->type_name("PREDICTION");
  command
      ->add_option("reports", request->reports, "what `penstock run --json` printed; several: a line each, with a name")
      ->required()
      ->type_name("REPORT");
  command->add_option("--mean", request->limits.mean_error, "bound of the mean error")
      ->capture_default_str()
      ->check(not_negative());
  command->add_option("--worst", request->limits.worst_error, "bound of the worst one")
      ->capture_default_str()
      ->check(not_negative());
  command
      ->add_option("--stalled", request->limits.stalled_error, "bound of the worst error of the share of time stalled")
      ->capture_default_str()
      ->check(not_negative());
  command
      ->add_option("--half-widths", request->limits.half_widths,
                   "so many half-widths of what was measured on top of --mean")
      ->capture_default_str()
      ->check(not_negative());
  command->add_flag("--json", request->json, "one JSON object on stdout");
  command->callback([=, &chosen] { chosen.run = [=] { return validate_files(*request); }; });
}

}  // namespace penstock
