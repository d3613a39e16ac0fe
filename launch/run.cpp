#include "launch/run.h"

#include "launch/command.h"
#include "runtime/base/error.h"
#include "runtime/config/job.h"
#include "runtime/process/launcher.h"
#include "runtime/trainer/attach.h"

namespace penstock {

int run_job(const RunRequest& request) {
  Job job = load_job(request.job_file, request.overrides);
  if (request.serve) {
    (void)serving_name(job);  // a name that cannot be served is found now
    if (job.roles.ranks_per_replica > 1) {
      throw Error(ErrorKind::config, "roles.ranks_per_replica is " + std::to_string(job.roles.ranks_per_replica) +
                                         ", and `penstock serve` feeds every trainer other data",
                  "start the trainers by `penstock run`, or leave the key out");
    }
  }
  const LauncherInfo launcher = detect_launcher(current_environment());
  if (launcher.kind == LauncherKind::none) return run_here(request, job);
  return run_rank(request, job);
}

void add_run(CLI::App& app, Chosen& chosen) {
  auto request = std::make_shared<RunRequest>();
  auto arguments = std::make_shared<JobArguments>();
  CLI::App* command = app.add_subcommand("run", "be one rank of a job (under mpirun), or the whole job");
  add_job_arguments(*command, *arguments);
  command->add_option("--epochs", request->epochs, "without a program: epochs to go through")
      ->check(positive());
  command->add_flag("--json", request->json, "print the report as one JSON object on stdout at the end");
  command->add_flag("--quiet", request->quiet, "no placement, progress or report for people");
  command->add_flag("--no-progress", request->quiet_progress, "no progress lines");
  command->add_option("--dump", request->dump_folder, "write every delivered batch to this folder")->type_name("DIR");
  command->add_flag("--raw", request->dump_raw, "dump the uint8 pixels before finishing");
  command->footer("The program and its arguments stand after --:  mpirun -n 4 penstock run job.yaml -- ./train\n"
                  "Without a program every batch is taken and dropped.");
  command->callback([request, arguments, &chosen] {
    chosen.run = [request, arguments, &chosen] {
      request->job_file = arguments->file;
      request->overrides = arguments->overrides;
      request->program = chosen.program;
      return run_job(*request);
    };
  });
}

}  // namespace penstock
