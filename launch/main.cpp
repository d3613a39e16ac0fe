// The `penstock` program: command line in, exit code out. Each subcommand is a file of its own (command.h).
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <new>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "launch/command.h"
#include "launch/end_channel.h"
#include "runtime/base/error.h"
#include "runtime/base/lower_case.h"
#include "runtime/base/switches.h"
#include "runtime/base/utf8.h"
#include "runtime/job/suggest.h"
#include "runtime/process/launcher.h"
#include "runtime/process/signals.h"
#include "runtime/process/standard_streams.h"

namespace penstock {
namespace {

// Under mpirun every rank would print the same complaint, and as a trainer's program (`penstock drain`) every trainer:
// one is enough.
void let_rank_0_speak_first() {
  const std::map<std::string, std::string> environment = current_environment();
  const auto of_program = environment.find("RANK");
  const int rank = of_program == environment.end() ? 0 : std::atoi(of_program->second.c_str());
  leave_it_to_rank_0(detect_launcher(environment).rank.value_or(rank));
}

std::string unknown_command(const CLI::App& app, const std::string& word) {
  std::vector<std::string> known;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App* c) { return !c->get_group().empty(); })) {
    known.push_back(command->get_name());
  }
  std::string text = "penstock: there is no command '" + word + "'";
  const std::string close = suggest(word, known);
  if (!close.empty()) text += "; did you mean '" + close + "'?";
  return text + "\n  help: penstock --help";
}

// "penstock config show": how far the words were understood.
std::string command_reached(const CLI::App& app) {
  std::string words = app.get_name();
  for (const CLI::App* at = &app; !at->get_subcommands().empty();) {
    at = at->get_subcommands().front();
    words += " " + at->get_name();
  }
  return words;
}

// "; did you mean '--epochs'?" for the first option that the command does not have; empty where nothing is close.
std::string option_meant(const CLI::App& app, const std::vector<std::string>& words) {
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  std::vector<std::string> known;
  for (const CLI::Option* option : command->get_options()) {
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  }
  for (const std::string& word : words) {
    const std::string name = word.substr(0, word.find('='));
    if (name.rfind("--", 0) != 0 || std::find(known.begin(), known.end(), name) != known.end()) continue;
    const std::string close = suggest(name, known);
    return close.empty() ? "" : "; did you mean '" + close + "'?";
  }
  return {};
}

// Programs that we start get /dev/null in the place of a stdout that is closed. What we would print there ourselves is
// lost, and must be an error like one on a full disk.
void fill_streams() {
  const bool closed = fcntl(STDOUT_FILENO, F_GETFD) < 0;
  fill_standard_streams();
  std::FILE* refusing = closed ? std::fopen("/dev/full", "we") : nullptr;
  if (refusing != nullptr) stdout = refusing;  // glibc lets it be set; the descriptor stays /dev/null
}

// A job file or a report that was cut off by a full disk must not pass for a good one.
int with_all_printed(int code) {
  if ((std::fflush(stdout) != 0 || std::ferror(stdout) != 0) && code == 0) {
    throw Error(ErrorKind::runtime, "cannot write to stdout", "is the disk full, the reader gone, or stdout closed?");
  }
  return code;
}

int run(int argc, char** argv, EndReporter& end) {
  check_switches();
  Chosen chosen;
  chosen.end = &end;
  std::vector<std::string> own;
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]) == "--") {
      chosen.program.assign(argv + i + 1, argv + argc);
      break;
    }
    own.emplace_back(argv[i]);
  }

  if (!own.empty() && own[0] == "help") {  // as git, cargo and docker have it
    own.erase(own.begin());
    own.emplace_back("--help");
  }

  CLI::App app("penstock: loader ranks feed trainer ranks, one stream bit for bit", "penstock");
  app.set_version_flag("--version", PENSTOCK_VERSION);
  app.require_subcommand(1);
  app.footer(
      "Examples:\n"
      "  penstock demo-data demo && penstock init --data demo/train --val demo/val > job.yaml\n"
      "  penstock check job.yaml\n"
      "  penstock launch --run job.yaml -n 4 -- ./train\n"
      "  mpirun -n 4 penstock run job.yaml -- ./train");
  add_init(app, chosen);
  add_run(app, chosen);
  add_serve(app, chosen);
  add_launch(app, chosen);
  add_check(app, chosen);
  add_doctor(app, chosen);
  add_index(app, chosen);
  add_pack(app, chosen);
  add_unpack(app, chosen);
  add_inspect(app, chosen);
  add_demo_data(app, chosen);
  add_config(app, chosen);
  add_schema(app, chosen);
  add_bench(app, chosen);
  add_drain(app, chosen);
  add_report(app, chosen);
  add_replay(app, chosen);
  add_profile(app, chosen);
  add_simulate(app, chosen);
  add_validate(app, chosen);
  add_plan(app, chosen);
  add_sweep(app, chosen);
  add_explain(app, chosen);

  const auto commands = app.get_subcommands([](const CLI::App*) { return true; });
  const bool known_command =
      !own.empty() && std::any_of(commands.begin(), commands.end(),
                                  [&](const CLI::App* command) { return command->get_name() == own[0]; });
  if (!own.empty() && own[0].rfind('-', 0) != 0 && !known_command) {
    let_rank_0_speak_first();
    std::fprintf(stderr, "%s\n", unknown_command(app, own[0]).c_str());
    return static_cast<int>(ErrorKind::usage);
  }
  try {
    std::vector<std::string> reversed(own.rbegin(), own.rend());
    app.parse(reversed);
  } catch (const CLI::Success& success) {
    std::ostringstream text;  // --help, --version
    const int code = app.exit(success, text);
    std::fputs(text.str().c_str(), stdout);
    return with_all_printed(code);
  } catch (const CLI::ParseError& error) {
    let_rank_0_speak_first();
    std::fprintf(stderr, "penstock: %s%s\n  help: %s --help\n", error.what(), option_meant(app, own).c_str(),
                 command_reached(app).c_str());
    return static_cast<int>(ErrorKind::usage);
  }
  return with_all_printed(chosen.run());
}

}  // namespace

void leave_it_to_rank_0(int rank) {
  if (rank != 0) std::this_thread::sleep_for(std::chrono::seconds(2));
}

namespace {

constexpr uint64_t kMostBytes = uint64_t{1} << 62;  // more than any disk holds

CLI::Validator number_above(double bound, bool inclusive, const std::string& what) {
  return CLI::Validator(
      [=](std::string& text) {
        double value = 0;
        const bool number = CLI::detail::lexical_cast(text, value);
        return number && (value > bound || (inclusive && value == bound)) ? std::string()
                                                                          : "'" + text + "' is not " + what;
      },
      "");
}

}  // namespace

CLI::Validator positive() {
  return number_above(0, false, "a number above 0");
}
CLI::Validator not_negative() {
  return number_above(0, true, "0 or more");
}
CLI::Validator some_bytes() {
  return CLI::Validator(
      [](std::string& text) {
        static const std::map<std::string, uint64_t> units = {{"", 1},
                                                              {"k", 1'000},
                                                              {"m", 1'000'000},
                                                              {"g", 1'000'000'000},
                                                              {"t", 1'000'000'000'000},
                                                              {"ki", 1ull << 10},
                                                              {"mi", 1ull << 20},
                                                              {"gi", 1ull << 30},
                                                              {"ti", 1ull << 40}};
        uint64_t count = 0;
        const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), count);
        std::string unit = lower_case(std::string_view(end, text.data() + text.size()));
        unit.erase(0, unit.find_first_not_of(' '));
        if (unit.ends_with('b')) unit.pop_back();
        const auto known = units.find(unit);
        if (failed != std::errc() || known == units.end() || count == 0 || count > kMostBytes / known->second) {
          return "'" + text + "' is no size: say a number above 0, as 500MB or 1GiB";
        }
        text = std::to_string(count * known->second);
        return std::string();
      },
      "");
}

CLI::Validator some_seconds() {
  return CLI::Validator(
      [](std::string& text) {
        double value = 0;
        const bool number = CLI::detail::lexical_cast(text, value);
        return number && value > 0 && value <= 1e9 ? std::string()
                                                   : "'" + text + "' is no number of seconds above 0, at most 1e9";
      },
      "");
}

void add_job_arguments(CLI::App& command, JobArguments& arguments) {
  command.add_option("job", arguments.file, "job file")->required()->type_name("JOB.yaml");
  command.add_option("overrides", arguments.overrides, "key.sub=value, over the job file and the environment");
}

}  // namespace penstock

int main(int argc, char** argv) {
  // Before all else: a rank that its launch has not heard of counts as one that did not start.
  penstock::EndReporter end = penstock::EndReporter::from_environment();
  if (!end.problem().empty()) std::fprintf(stderr, "penstock: %s\n", end.problem().c_str());
  const auto failed = [&end](int code, const std::string& what) {
    end.ended(code, what);
    std::fprintf(stderr, "penstock: %s\n", penstock::without_controls(what).c_str());
    return code;
  };
  try {
    penstock::fill_streams();
    penstock::block_signal_of_writes(SIGXFSZ);
    // Where our parent ignores it, that is passed on, and the kernel would not tell us how our children end.
    std::signal(SIGCHLD, SIG_DFL);
    const int code = penstock::run(argc, argv, end);
    end.ended(code, "");
    return code;
  } catch (const penstock::Error& error) {
    penstock::let_rank_0_speak_first();
    return failed(error.exit_code(), error.what());
  } catch (const std::bad_alloc&) {
    return failed(1,
                  "there is no memory left for it\n  help: use fewer threads, or raise the limit (ulimit -v, the "
                  "container's)");
  } catch (const std::exception& error) {
    return failed(1, error.what());
  }
}
