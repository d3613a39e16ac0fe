// `penstock serve`: ranks that load and open receivers, for training programs that somebody else starts (torchrun,
// Slurm).
#include <cstdio>

#include "launch/command.h"
#include "launch/run_job.h"
#include "runtime/base/error.h"
#include "runtime/base/host_name.h"
#include "runtime/client/attach.h"
#include "runtime/job/job.h"

namespace penstock {
namespace {

int stop(const JobArguments& arguments) {
  const std::string name = serving_name(load_job(arguments.file, arguments.overrides));
  if (end_serving(name, 60 * kSecond)) return 0;
  throw Error(ErrorKind::peer_lost, "nobody serves job '" + name + "' on host " + host_name(),
              "say it on a host of the job, as the user who started it");
}

}  // namespace

void add_serve(CLI::App& app, Chosen& chosen) {
  auto request = std::make_shared<RunRequest>();
  auto arguments = std::make_shared<JobArguments>();
  auto ending = std::make_shared<bool>(false);
  CLI::App* command = app.add_subcommand("serve", "be one rank that feeds programs started by torchrun or Slurm");
  add_job_arguments(*command, *arguments);
  command->add_flag("--stop", *ending, "end the serving job of this name, from any of its hosts, and wait for that");
  command->add_option("--idle-s", request->idle_s, "end after so many seconds without a program, once one was there")
      ->check(some_seconds());
  command->add_flag("--json", request->json, "print the report as one JSON object on stdout at the end");
  command->add_flag("--quiet", request->quiet, "no placement, progress or report for people");
  command->add_flag("--no-progress", request->quiet_progress, "no progress lines");
  add_role(*command, request->role);
  command->footer(
      "mpirun -n 4 penstock serve job.yaml &\n"
      "PENSTOCK_ATTACH=1 torchrun --nproc_per_node=2 train.py\n"
      "penstock serve --stop job.yaml");
  command->callback([=, &chosen] {
    chosen.run = [=, &chosen] {
      if (!chosen.program.empty()) {
        throw Error(ErrorKind::usage, "`penstock serve` starts no program",
                    "`penstock run` does; programs that are started otherwise attach to serve");
      }
      if (*ending) return stop(*arguments);
      request->serve = true;
      request->end = chosen.end;
      request->job_file = arguments->file;
      request->overrides = arguments->overrides;
      return run_job(*request);
    };
  });
}

}  // namespace penstock
