#include "launch/run_job.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>
#include <filesystem>

#include "launch/command.h"
#include "launch/output_file.h"
#include "launch/trainer.h"
#include "runtime/base/error.h"
#include "runtime/base/memory.h"
#include "runtime/client/attach.h"
#include "runtime/job/gpu_keys.h"
#include "runtime/job/job.h"
#include "runtime/process/descriptor_limit.h"
#include "runtime/process/launcher.h"
#include "runtime/report/batch_dump.h"

namespace penstock {

namespace {

// Before any rank has written: what is in the folder is not this job's.
void refuse_earlier_dump(const RunRequest& request, const Job& job) {
  std::vector<std::string> splits;
  for (const auto& [name, spec] : job.splits) splits.push_back(name);
  const std::string found = request.dump_folder.empty() ? "" : earlier_dump(request.dump_folder, splits);
  if (found.empty()) return;
  throw Error(ErrorKind::usage, "the folder '" + request.dump_folder + "' has a dump in it already: '" + found + "'",
              "remove it, or name another folder: batches would be written over, and the manifest have lines of both");
}

// Held while the job runs: of one beside it earlier_dump() sees nothing before both have written. A folder that cannot
// be made, or locked, is left to whoever writes there.
UniqueFd claim_dump(const std::string& path) {
  if (path.empty()) return {};
  std::error_code ignored;
  std::filesystem::create_directories(path, ignored);
  UniqueFd folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder && ::flock(folder.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    throw Error(ErrorKind::usage, "another job dumps to the folder '" + path + "'",
                "name another folder, or wait until it has ended");
  }
  return folder;
}

}  // namespace

void refuse_job_that_is_read_once(const std::string& path) {
  std::error_code ignored;
  const bool mine = path.starts_with("/dev/") || path.starts_with("/proc/");  // another process's is another file
  const auto status = std::filesystem::status(path, ignored);
  if (!mine && !std::filesystem::is_other(status)) return;
  throw Error(ErrorKind::usage,
              "'" + path + "' is no file that several processes can read, and ranks and program each do",
              "save the job to a file");
}

int run_job(const RunRequest& request) {
  refuse_job_that_is_read_once(request.job_file);
  Job job = load_job(request.job_file, request.overrides);
  refuse_earlier_dump(request, job);
  if (request.serve) {
    (void)serving_name(job);  // a name that cannot be served is found now
    if (job.roles.ranks_per_replica > 1) {
      throw Error(ErrorKind::config,
                  "roles.ranks_per_replica is " + std::to_string(job.roles.ranks_per_replica) +
                      ", and `penstock serve` feeds every trainer other data",
                  "start the trainers by `penstock run`, or leave the key out");
    }
  }
  const LauncherInfo launcher = detect_launcher(current_environment());
  if (request.role && launcher.kind == LauncherKind::none) {
    throw Error(ErrorKind::usage, "--role is for ranks, and mpirun has not started this process",
                "`penstock launch --trainer-host … --loader-host …` writes the mpirun line");
  }
  if (request.role == Role::loader && !request.program.empty()) {
    throw Error(ErrorKind::usage, "a loader starts no program",
                "leave out what stands after -- where --role is loader");
  }
  const std::string unused = gpu_keys_without_effect(job);
  if (!unused.empty() && launcher.rank.value_or(0) == 0 && !request.quiet) print_notice(unused);
  // Rank 0 alone writes it: the other ranks' hosts need not have that folder.
  if (!request.profile_file.empty() && launcher.rank.value_or(0) == 0) check_output_file(request.profile_file);
  const UniqueFd dump = launcher.rank.value_or(0) == 0 ? claim_dump(request.dump_folder) : UniqueFd();
  if (launcher.kind == LauncherKind::none) return run_single_process(request, job);
  const int here = launcher.local_size.value_or(1);
  allow_descriptors(descriptors_of_node(here), "a rank, one of " + std::to_string(here) + " on its node,");
  return run_mpi_rank(request, job);
}

void add_role(CLI::App& command, std::optional<Role>& role) {
  command
      .add_option_function<std::string>(
          "--role", [&role](const std::string& text) { role = text == "trainer" ? Role::trainer : Role::loader; },
          "what this rank is to be, where nodes load alone: every part of the mpirun line says it")
      ->check(CLI::IsMember({"trainer", "loader"}))
      ->type_name("trainer|loader");
}

void add_run(CLI::App& app, Chosen& chosen) {
  auto request = std::make_shared<RunRequest>();
  auto arguments = std::make_shared<JobArguments>();
  CLI::App* command = app.add_subcommand("run", "be one rank of a job (under mpirun), or the whole job");
  add_job_arguments(*command, *arguments);
  command->add_option("--epochs", request->epochs, "without a program: epochs to go through")->check(positive());
  command->add_flag("--json", request->json, "print the report as one JSON object on stdout at the end");
  command->add_flag("--quiet", request->quiet, "no placement, progress or report for people");
  command->add_flag("--no-progress", request->quiet_progress, "no progress lines");
  add_role(*command, request->role);
  CLI::Option* dump = command
                          ->add_option("--dump", request->dump_folder,
                                       "write every delivered batch to this folder, new or without a dump in it")
                          ->type_name("DIR");
  command->add_flag("--raw", request->dump_raw, "of --dump: the uint8 pixels before finishing")->needs(dump);
  command
      ->add_option("--profile", request->profile_file,
                   "write what was measured of machine and data, for `penstock plan`")
      ->type_name("FILE");
  command->footer(
      "The program and its arguments stand after --:  mpirun -n 4 penstock run job.yaml -- ./train\n"
      "Without a program every batch is taken and dropped.");
  command->callback([request, arguments, &chosen] {
    chosen.run = [request, arguments, &chosen] {
      request->job_file = arguments->file;
      request->overrides = arguments->overrides;
      request->program = chosen.program;
      request->end = chosen.end;
      return run_job(*request);
    };
  });
}

}  // namespace penstock
