// The subcommands of the `penstock` program: each is a file of its own that adds itself to the command line.
//
//   void add_check(CLI::App& app, Chosen& chosen);    // chosen.run is what main() calls after parsing
//
// Manners: data on stdout, messages on stderr; exit codes are ErrorKind's (0 ok, 1 run time, 2 usage, 3 config,
// 4 dataset, 5 peer lost).
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/process/placement.h"

namespace penstock {

class EndReporter;

struct Chosen {
  std::function<int()> run;
  std::vector<std::string> program;  // what stood after "--"
  EndReporter* end = nullptr;        // of a rank that `penstock launch --run` started; it outlives the command
};

void add_init(CLI::App& app, Chosen& chosen);
void add_run(CLI::App& app, Chosen& chosen);
void add_serve(CLI::App& app, Chosen& chosen);
void add_launch(CLI::App& app, Chosen& chosen);
void add_check(CLI::App& app, Chosen& chosen);
void add_doctor(CLI::App& app, Chosen& chosen);
void add_index(CLI::App& app, Chosen& chosen);
void add_pack(CLI::App& app, Chosen& chosen);
void add_unpack(CLI::App& app, Chosen& chosen);
void add_inspect(CLI::App& app, Chosen& chosen);
void add_demo_data(CLI::App& app, Chosen& chosen);
void add_config(CLI::App& app, Chosen& chosen);
void add_schema(CLI::App& app, Chosen& chosen);
void add_bench(CLI::App& app, Chosen& chosen);
void add_drain(CLI::App& app, Chosen& chosen);
void add_report(CLI::App& app, Chosen& chosen);
void add_replay(CLI::App& app, Chosen& chosen);
void add_profile(CLI::App& app, Chosen& chosen);
void add_simulate(CLI::App& app, Chosen& chosen);
void add_validate(CLI::App& app, Chosen& chosen);
void add_plan(CLI::App& app, Chosen& chosen);
void add_sweep(CLI::App& app, Chosen& chosen);
void add_explain(CLI::App& app, Chosen& chosen);

// Where all ranks meet the same mistake, rank 0 says so, and the others give it time to: mpirun ends the job with the
// first rank that leaves, and would cut the message off. A rank that is still here afterwards met a mistake of its own,
// and speaks for itself.
void leave_it_to_rank_0(int rank);

// What a number on the command line must be; said without the 309 digits of the largest double.
CLI::Validator positive();
CLI::Validator not_negative();
CLI::Validator some_seconds();  // above 0, and few enough to be counted
CLI::Validator some_bytes();    // "500MB", "1GiB": becomes the number of bytes

// "job.yaml a.b=c ...": the file, then overrides.
struct JobArguments {
  std::string file;
  std::vector<std::string> overrides;
};
void add_job_arguments(CLI::App& command, JobArguments& arguments);
// --role of `run` and `serve`.
void add_role(CLI::App& command, std::optional<Role>& role);

}  // namespace penstock
