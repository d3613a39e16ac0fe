// `penstock report` and `penstock replay`: what finished runs have left behind, looked at again.
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>

#include "launch/command.h"
#include "runtime/balancer/balancer.h"
#include "runtime/base/error.h"
#include "runtime/base/file_system.h"
#include "runtime/base/json_text.h"
#include "runtime/report/joined_report.h"

namespace penstock {
namespace {

constexpr size_t kMostBytes = size_t{4} << 30;

std::string text_of_file(const std::string& path) {
  std::vector<std::byte> bytes;
  if (!posix_file_system().read_file(path, kMostBytes, bytes)) {
    throw Error(ErrorKind::usage, "'" + path + "' is larger than any report or log", "name another file");
  }
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

int report(const std::vector<std::string>& files, const std::vector<std::string>& splits, bool as_json) {
  std::vector<NamedReport> reports;
  for (const std::string& file : files) reports.emplace_back(file, printed_report(text_of_file(file)));
  const nlohmann::json joined = join_reports(reports, {splits.begin(), splits.end()});
  std::fputs(as_json ? (json_text(joined) + "\n").c_str() : joined_text(joined).c_str(), stdout);
  return 0;
}

Replayed replay_of(const std::string& file) {
  const std::string text = text_of_file(file);
  try {
    return replay_log(text);
  } catch (const Error& error) {
    throw Error(ErrorKind::usage, "'" + file + "': " + error.message(),
                "name a file that a run with balancer.log=FILE wrote, whole but for its end");
  }
}

int replay(const std::string& file) {
  const Replayed replayed = replay_of(file);
  if (!replayed.difference.empty()) {
    throw Error(ErrorKind::runtime, "'" + file + "' replays to other decisions: " + replayed.difference,
                "replay a log with the version of penstock that wrote it; with that one this is a defect");
  }
  std::printf("%lld events, and every decision as it was%s\n", static_cast<long long>(replayed.events),
              replayed.cut_off ? "; the log is cut off after them" : "");
  return 0;
}

}  // namespace

void add_report(CLI::App& app, Chosen& chosen) {
  auto files = std::make_shared<std::vector<std::string>>();
  auto splits = std::make_shared<std::vector<std::string>>();
  auto as_json = std::make_shared<bool>(false);
  CLI::App* command = app.add_subcommand("report", "add the reports of an interrupted job's runs");
  command->add_option("reports", *files, "what `run --json` printed, a file for each run")
      ->required()
      ->type_name("REPORT.json");
  command
      ->add_option("--split", *splits,
                   "this split alone; may be repeated; one of mode eval is joined only if it is named")
      ->type_name("NAME")
      ->allow_extra_args(false);
  command->add_flag("--json", *as_json, "print one JSON object");
  command->footer(
      "Steps that are missing, or there twice, are an error that names them. The hashes are those of one run that\n"
      "was not interrupted:  penstock report monday.json tuesday.json\n"
      "Splits of mode eval are left out, because a program evaluates one again and again. --split names one to be\n"
      "compared: all its evaluations must have the same hashes, and those of one evaluation are printed.");
  command->callback([=, &chosen] { chosen.run = [=] { return report(*files, *splits, *as_json); }; });
}

void add_replay(CLI::App& app, Chosen& chosen) {
  auto file = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand("replay", "have the balancer decide once more, from a recorded log");
  command->add_option("log", *file, "written by a run with balancer.log=FILE")->required()->type_name("LOG");
  command->footer("Exit code 0: every decision is as it was. Otherwise the first that differs is told.");
  command->callback([=, &chosen] { chosen.run = [=] { return replay(*file); }; });
}

}  // namespace penstock
