// `penstock launch`: writes the mpirun line of a job, and runs it with --run.
#include <unistd.h>
#include <algorithm>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <thread>

#include "launch/command.h"
#include "launch/findings.h"
#include "launch/launch_line.h"
#include "launch/run_job.h"
#include "runtime/base/error.h"
#include "runtime/base/json_text.h"
#include "runtime/base/memory.h"
#include "runtime/client/attach.h"
#include "runtime/job/job.h"
#include "runtime/process/launcher.h"
#include "runtime/process/placement.h"
#include "runtime/process/session_folder.h"

namespace penstock {
namespace {

std::string own_path() {
  char path[4096] = {};
  const ssize_t length = ::readlink("/proc/self/exe", path, sizeof path - 1);
  return length > 0 ? std::string(path, static_cast<size_t>(length)) : "penstock";
}

int launch(const JobArguments& arguments, LaunchRequest request, bool run, const std::string& mpirun,
           std::vector<std::string> program) {
  refuse_job_that_is_read_once(arguments.file);
  const Job job = load_job(arguments.file, arguments.overrides);
  request.job = arguments.file;
  request.overrides = arguments.overrides;
  request.program = std::move(program);
  request.penstock = own_path();
  request.trainers = job.roles.trainers;
  request.trainers_given = job.roles.trainers_given;
  request.loader_threads = job.loader.threads;
  request.grace_s = job.trainer.grace_s;
  request.lost_after_s = job.balancer.lost_after_s;
  request.start_timeout_s = job.mpi.start_timeout_s;
  request.cores = static_cast<int>(allowed_cores(false).size());
  request.root = ::geteuid() == 0;
  request.environment = current_environment();
  if (!request.hostfile.empty()) request.hostfile_hosts = static_cast<int>(read_hostfile(request.hostfile).size());
  const bool serve = request.command == "serve";
  if (serve && !request.program.empty()) {
    throw Error(ErrorKind::usage, "`penstock serve` starts no program", "leave out --serve, or what stands after --");
  }
  const std::string name = serve ? serving_name(job) : "";
  request.session_folder = new_session_folder_name();
  LaunchLine line = launch_line(request, find_mpirun(mpirun));
  if (serve) {
    line.end_in_order = [name] {
      try {
        return end_serving(name, 20 * kSecond);
      } catch (const Error&) {
        return false;
      }
    };
  }
  if (!run) {
    std::printf("%s\n", shell_quoted(line.argv).c_str());
    if (const std::string remedy = localhost_remedy(); !remedy.empty()) {
      std::fprintf(stderr,
                   "penstock: localhost is not in /etc/hosts, so this line may take 5 s or more to start\n  help: %s\n",
                   remedy.c_str());
    }
    return 0;
  }
  const bool quiet = std::find(request.options.begin(), request.options.end(), "--quiet") != request.options.end();
  if (!quiet) std::fprintf(stderr, "%s\n", shell_quoted(line.argv).c_str());
  return run_launch_line(line);
}

}  // namespace

void add_launch(CLI::App& app, Chosen& chosen) {
  auto arguments = std::make_shared<JobArguments>();
  auto request = std::make_shared<LaunchRequest>();
  auto run = std::make_shared<bool>(false);
  auto serve = std::make_shared<bool>(false);
  auto idle_s = std::make_shared<double>(0);
  auto json = std::make_shared<bool>(false);
  auto quiet = std::make_shared<bool>(false);
  auto epochs = std::make_shared<int>(0);
  auto dump = std::make_shared<std::string>();
  auto raw = std::make_shared<bool>(false);
  auto mpirun = std::make_shared<std::string>("mpirun");
  CLI::App* command = app.add_subcommand("launch", "write the mpirun line of a job, or run it");
  add_job_arguments(*command, *arguments);
  command->add_option("-n,--ranks", request->ranks, "ranks of the whole job, trainers and loaders")->check(positive());
  command->add_option("--loaders", request->loaders, "loaders per node, instead of -n")->check(positive());
  // What follows with a blank is an override, or the job.
  command->add_option("--host", request->hosts, "hosts, as mpirun takes them")->delimiter(',')->allow_extra_args(false);
  command->add_option("--hostfile", request->hostfile, "file of hosts");
  for (const auto& [role, hosts, what] : {std::tuple("trainer", &LaunchRequest::trainer_hosts, "train"),
                                          std::tuple("loader", &LaunchRequest::loader_hosts, "load")}) {
    const std::string name = std::string("--") + role + "-host";
    CLI::Option* list =
        command
            ->add_option_function<std::vector<std::string>>(
                name,
                [request, hosts](const std::vector<std::string>& words) { (*request).*hosts = parse_hosts(words); },
                std::string("hosts and how many ranks ") + what + " there, as a:8,b:8")
            ->delimiter(',')
            ->allow_extra_args(false)
            ->type_name("HOST:N");
    command
        ->add_option_function<std::string>(
            name + "file", [request, hosts](const std::string& path) { (*request).*hosts = read_hostfile(path); },
            "the same as a file of lines HOST slots=N")
        ->excludes(list)
        ->type_name("FILE");
  }
  command->add_option("--mpirun", *mpirun, "another mpirun")->capture_default_str();
  CLI::Option* print_flag = command->add_flag("--print")->description("print the line (the default)");
  command->add_flag("--run", *run, "run it")->excludes(print_flag);
  CLI::Option* serve_flag = command->add_flag("--serve", *serve, "`penstock serve` instead of `penstock run`");
  command->add_option("--idle-s", *idle_s, "passed on to `penstock serve`")->needs(serve_flag)->check(some_seconds());
  command->add_flag("--json", *json, "passed on to `penstock run`");
  command->add_flag("--quiet", *quiet, "passed on");
  command->add_option("--epochs", *epochs, "passed on")->excludes(serve_flag);
  CLI::Option* dump_option = command->add_option("--dump", *dump, "passed on")->type_name("DIR")->excludes(serve_flag);
  command->add_flag("--raw", *raw, "passed on")->excludes(serve_flag)->needs(dump_option);
  command->footer("The program and its arguments stand after --:  penstock launch --run job.yaml -n 4 -- ./train");
  command->callback([=, &chosen] {
    chosen.run = [=, &chosen] {
      if (*serve) request->command = "serve";
      if (*idle_s > 0) request->options.push_back("--idle-s=" + json_text(nlohmann::json(*idle_s)));
      if (*json) request->options.push_back("--json");
      if (*quiet) request->options.push_back("--quiet");
      if (*epochs > 0) request->options.push_back("--epochs=" + std::to_string(*epochs));
      if (!dump->empty()) request->options.push_back("--dump=" + *dump);
      if (*raw) request->options.push_back("--raw");
      return launch(*arguments, *request, *run, *mpirun, chosen.program);
    };
  });
}

}  // namespace penstock
