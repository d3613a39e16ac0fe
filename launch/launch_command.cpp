// `penstock launch`: writes the mpirun line of a job, and runs it with --run; or what starts the job in a cluster.
#include <unistd.h>
#include <algorithm>

#include <cctype>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "launch/batch_nodes.h"
#include "launch/command.h"
#include "launch/findings.h"
#include "launch/init_job.h"
#include "launch/launch_files.h"
#include "launch/launch_line.h"
#include "launch/run_job.h"
#include "launch/trainer.h"
#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/base/json_text.h"
#include "runtime/base/memory.h"
#include "runtime/base/utf8.h"
#include "runtime/client/attach.h"
#include "runtime/job/job.h"
#include "runtime/job/job_reader.h"
#include "runtime/process/descriptor_limit.h"
#include "runtime/process/launcher.h"
#include "runtime/process/placement.h"
#include "runtime/process/session_folder.h"

namespace penstock {
namespace {

// Nodes that a cluster chooses: how many of which kind, before they have names.
struct Cluster {
  std::string file;         // slurm, k8s or docker: what is written; empty: nothing
  int nodes = 0;            // all alike
  NodeCount trainer_nodes;  // or these and the next
  NodeCount loader_nodes;
  std::string image;
  int gpus = 0;

  bool counts_nodes() const { return nodes > 0 || trainer_nodes.nodes > 0 || loader_nodes.nodes > 0; }
};

std::vector<NodeGroup> groups_of(const Cluster& cluster, const LaunchRequest& request) {
  const bool apart = cluster.trainer_nodes.nodes > 0 || cluster.loader_nodes.nodes > 0;
  const char* const both = "--nodes N, all alike; or --trainer-nodes N:RANKS and --loader-nodes N:RANKS";
  if (apart == (cluster.nodes > 0)) {
    throw Error(ErrorKind::usage, apart ? "nodes are counted twice" : "nothing says how many nodes", both);
  }
  if (!apart) {
    if (request.loaders == 0) {
      throw Error(ErrorKind::usage, "nothing says how many ranks load on a node", "--loaders N");
    }
    return {{cluster.nodes, std::max(request.trainers, 1), request.loaders}};
  }
  if (cluster.trainer_nodes.nodes == 0 || cluster.loader_nodes.nodes == 0) {
    throw Error(ErrorKind::usage, "only the nodes of one role are counted", both);
  }
  const int loaders = cluster.loader_nodes.ranks > 0 ? cluster.loader_nodes.ranks : request.loaders;
  if (cluster.loader_nodes.loaders > 0) {
    throw Error(ErrorKind::usage, "nodes that only load have one number of ranks", "--loader-nodes N:RANKS");
  }
  if (cluster.trainer_nodes.ranks == 0 || loaders == 0) {
    throw Error(ErrorKind::usage, "nothing says how many ranks a node has",
                "--trainer-nodes N:RANKS, as many as it has GPUs, usually; --loader-nodes N:RANKS");
  }
  return {{cluster.trainer_nodes.nodes, cluster.trainer_nodes.ranks, cluster.trainer_nodes.loaders},
          {cluster.loader_nodes.nodes, 0, loaders}};
}

// The nodes have their names: those of trainers first.
void name_hosts(const std::vector<NodeGroup>& groups, const std::vector<std::string>& names, LaunchRequest& request) {
  size_t expected = 0;
  for (const NodeGroup& group : groups) expected += static_cast<size_t>(group.nodes);
  if (names.size() != expected) {
    throw Error(
        ErrorKind::usage,
        "there are " + std::to_string(names.size()) + " nodes, and the command line counts " + std::to_string(expected),
        "srun has to start one task a node; write the script anew with `penstock launch --slurm`");
  }
  if (groups.size() == 1) {
    request.hosts = names;
    return;
  }
  request.trainers_option = "--trainer-nodes";
  for (const std::string& name : names) {
    const NodeGroup& group = groups[request.trainer_hosts.size() < static_cast<size_t>(groups[0].nodes) ? 0 : 1];
    if (group.trainers > 0) request.trainer_hosts.push_back({name, group.trainers});
    if (group.loaders > 0) request.loader_hosts.push_back({name, group.loaders});
  }
  request.loaders = 0;
}

// What Slurm and Kubernetes take as a name: a label of DNS. Different jobs must not become one, so where more than signs
// was lost there is a hash.
std::string cluster_name(const Job& job) {
  const std::string whole = job.name.empty() ? std::filesystem::path(job.path).stem().string() : job.name;
  std::string name;
  bool lost = false;
  for (const char c : whole) {
    const auto letter = static_cast<unsigned char>(c);
    lost = lost || letter >= 0x80;
    name += std::isalnum(letter) != 0 && letter < 0x80 ? static_cast<char>(std::tolower(letter)) : '-';
  }
  const size_t first = std::min(name.find_first_not_of("0123456789-"), name.size());
  constexpr size_t kMost = 40;  // of 63, and pods have more behind it
  lost = lost || first > 0 || name.size() - first > kMost;
  name = name.substr(first, kMost);
  while (name.ends_with('-')) name.pop_back();
  if (name.empty()) name = "penstock";
  return lost ? name + "-" + hash128(whole).hex().substr(0, 8) : name;
}

// YAML and JSON have no place for them; a shell script has.
bool has_controls(const std::string& text) {
  const auto is_control = [](uint32_t c) {
    const bool of_lines = c == '\n' || c == '\t';
    return (c < 0x20 && !of_lines) || (c >= 0x7f && c < 0xa0) || c == 0x2028 || c == 0x2029 || c == 0xfeff ||
           (c & 0xfffe) == 0xfffe;
  };
  if (first_not_utf8(text) != text.size()) return true;
  for (size_t at = 0; at < text.size();) {
    const Character next = decode_utf8(text, at);
    if (is_control(next.code)) return true;
    at += next.bytes;
  }
  return false;
}

void refuse_controls(const std::vector<std::string>& words) {
  for (const std::string& word : words) {
    if (!has_controls(word)) continue;
    throw Error(ErrorKind::usage, "'" + without_controls(word) + "' has control characters, or is no UTF-8",
                "such words cannot stand in a manifest or a Dockerfile: put them into a script, and name that");
  }
}

// The job file goes into the manifest, and its folder is all that pods see of the files.
void require_manifest_can_hold(const LaunchFile& file) {
  namespace fs = std::filesystem;
  std::string text = file.job_text;
  std::erase(text, '\r');
  if (has_controls(text)) {
    throw Error(ErrorKind::usage, "'" + file.job + "' has control characters, or is no UTF-8",
                "a manifest cannot hold them: take them out, of comments too (U+0085 and U+2028 look like spaces)");
  }
  const fs::path mounted = fs::path(file.job).parent_path();
  const fs::path inside = fs::path(file.folder).lexically_relative(mounted);
  if (mounted == mounted.root_path() || inside.empty() || *inside.begin() == "..") {
    throw Error(ErrorKind::usage,
                "pods see the job file's folder '" + mounted.string() + "', and the program would start in '" +
                    file.folder + "'",
                "put the job file beside the program, in a folder other than /, and start from there");
  }
}

// The folders that a split's data lies in, as containers would have to mount them.
std::set<std::string> data_folders(const SplitSpec& split) {
  namespace fs = std::filesystem;
  std::set<std::string> folders;
  const auto add = [&](const std::string& path, DatasetPlace place) {
    if (path.empty() || place == DatasetPlace::none) return;
    const std::string fixed = path.substr(0, path.find_first_of("{*?["));
    const bool whole = place == DatasetPlace::folder;
    folders.insert(whole ? path : fs::path(fixed).parent_path().string());
  };
  const DatasetSpec& data = split.dataset;
  for (const DatasetKind& kind : kDatasetKinds) add(data.*kind.value, kind.place);
  for (const std::string& path : {data.targets, data.masks}) add(path, DatasetPlace::folder);
  for (const std::string& path : {data.index, split.sampler.file()}) add(path, DatasetPlace::file);
  return folders;
}

// A container sees the folder `seen` alone, and under a name of its own where `renamed`: then a path is right only where
// the job has it relative to its file.
void warn_of_data_outside(const Job& job, const LaunchRequest& request, const std::filesystem::path& seen, bool renamed,
                          const std::function<std::string(const std::string&)>& remedy) {
  std::string text = renamed ? read_job_file(request.job) : "";
  for (const std::string& word : request.overrides) text += "\n" + word;
  std::set<std::string> outside;
  for (const auto& [name, split] : job.splits) {
    for (const std::string& folder : data_folders(split)) {
      const auto inside = std::filesystem::path(folder).lexically_relative(seen);
      const bool below = !inside.empty() && *inside.begin() != "..";
      if (!below || (renamed && text.find(folder) != std::string::npos)) outside.insert(folder);
    }
  }
  for (const std::string& folder : outside) {
    print_notice("containers see the folder '" + seen.string() + "' alone" + (renamed ? ", as /job" : "") +
                 ", and the job reads '" + folder + "'\n  help: " + remedy(folder));
  }
}

std::string launch_file(const Job& job, const Cluster& cluster, LaunchRequest request, const std::string& mpirun) {
  namespace fs = std::filesystem;
  LaunchFile file;
  file.name = cluster_name(job);
  file.job = request.job;
  file.folder = fs::current_path().string();
  file.image = cluster.image;
  file.gpus = cluster.gpus;
  file.program = request.program;
  file.loader_threads = job.loader.threads;
  constexpr double kProgram_gb = 1;
  file.loader_memory_gb =
      job.loader.memory_gb + job.loader.cache_gb * static_cast<double>(job.splits.size()) + kProgram_gb;
  file.grace_s = job.trainer.grace_s;
  const bool docker = cluster.file == "docker";
  if (docker) {
    if (cluster.counts_nodes() || !cluster.image.empty()) {
      throw Error(ErrorKind::usage, "a Dockerfile says nothing of nodes, nor of another image",
                  "give those to --k8s, which uses the image that is made of it");
    }
    if (request.ranks > 0 || request.loaders > 0)
      (void)launch_line(request, MpiFound{.major = 4});  // as launch would refuse
    file.job = fs::path(request.job).filename();         // the folder of the image is the job file's
    if (job.loader.executor != ExecutorKind::cpu) file.gpus = std::max(file.gpus, 1);
  } else {
    file.groups = groups_of(cluster, request);
  }
  if (cluster.file == "k8s") {
    file.job = fs::absolute(request.job).lexically_normal();
    file.job_text = read_job_file(file.job);
    require_manifest_can_hold(file);
    if (file.image.empty()) {
      throw Error(ErrorKind::usage, "pods need an image", "--image REGISTRY/NAME: see penstock launch --docker");
    }
  }
  file.command = {docker || !cluster.image.empty() ? "penstock" : request.penstock, "launch", "--run", file.job};
  if (mpirun != "mpirun") file.command.push_back("--mpirun=" + mpirun);
  if (request.command == "serve") file.command.emplace_back("--serve");
  if (docker && request.ranks > 0) file.command.push_back("-n" + std::to_string(request.ranks));
  if (docker && request.loaders > 0) file.command.push_back("--loaders=" + std::to_string(request.loaders));
  file.command.insert(file.command.end(), request.options.begin(), request.options.end());
  file.command.insert(file.command.end(), request.overrides.begin(), request.overrides.end());
  if (cluster.file != "slurm") {
    for (const auto& words : {file.command, file.program, {file.folder, file.image}}) refuse_controls(words);
  }
  const fs::path beside = fs::absolute(request.job).lexically_normal().parent_path();
  if (docker) {
    warn_of_data_outside(job, request, beside, true, [](const std::string& folder) {
      return "docker run -v " + shell_quoted({folder + ":" + folder + ":ro"}) +
             " …, or name it relative to the job file, and have it below that";
    });
    return dockerfile(file);
  }
  // What launch would refuse in the cluster is refused here.
  std::vector<std::string> names;
  for (const NodeGroup& group : file.groups) {
    for (int i = 0; i < group.nodes; ++i) names.push_back("node" + std::to_string(names.size()));
  }
  name_hosts(file.groups, names, request);
  MpiFound any;
  any.major = 4;
  (void)launch_line(request, any);
  if (cluster.file == "k8s") {
    warn_of_data_outside(job, request, beside, false, [](const std::string& folder) {
      return "give every pod of the manifest a volume with a readOnly mount at mountPath " + yaml_quoted(folder) +
             ", or have the data beside the job file";
    });
  } else if (!file.image.empty()) {
    warn_of_data_outside(job, request, file.folder, false, [](const std::string& folder) {
      return "add " + shell_quoted({folder + ":" + folder + ":ro"}) +
             " to --bind or --container-mounts in the script, or have the data below that folder";
    });
  }
  return cluster.file == "slurm" ? slurm_script(file) : kubernetes_manifest(file);
}

void add_cluster(CLI::App& command, const std::shared_ptr<Cluster>& cluster, std::vector<CLI::Option*> others) {
  command.add_option("--nodes", cluster->nodes, "nodes of a cluster, all alike")->check(positive());
  for (const auto& [role, count] :
       {std::pair("trainer", &Cluster::trainer_nodes), std::pair("loader", &Cluster::loader_nodes)}) {
    command
        .add_option_function<std::string>(
            std::string("--") + role + "-nodes",
            [cluster, count = count](const std::string& word) { (*cluster).*count = parse_nodes(word); },
            role[0] == 't' ? "or how many nodes train, with how many ranks each, and loaders besides"
                           : "and how many only load, with how many ranks each")
        ->type_name(role[0] == 't' ? "NODES:N[:M]" : "NODES:N");
  }
  for (const auto& [file, what] :
       {std::pair("slurm", "print a script for sbatch, with as many nodes"),
        std::pair("k8s", "print a manifest for Kubernetes and its mpi-operator, with as many nodes"),
        std::pair("docker", "print a Dockerfile")}) {
    CLI::Option* flag = command.add_flag_callback(
        std::string("--") + file, [cluster, name = std::string(file)] { cluster->file = name; }, what);
    for (CLI::Option* other : others) flag->excludes(other);
    others.push_back(flag);
  }
  command
      .add_option("--image", cluster->image,
                  "of a container, for --k8s, and for --slurm (a file .sif or docker://…: by Apptainer, else by pyxis)")
      ->type_name("IMAGE");
  command.add_option("--gpus", cluster->gpus, "GPUs of each node that trains, for --slurm, --k8s and --docker")
      ->check(positive());
}

int launch(const JobArguments& arguments, LaunchRequest request, const Cluster& cluster, bool run,
           const std::string& mpirun, std::vector<std::string> program) {
  refuse_job_that_is_read_once(arguments.file);
  const Job job = load_job(arguments.file, arguments.overrides);
  request.job = arguments.file;
  request.overrides = arguments.overrides;
  request.program = std::move(program);
  request.penstock = program_path();
  request.trainers = job.roles.trainers;
  request.trainers_given = job.roles.trainers_given;
  request.loader_threads = job.loader.threads;
  request.grace_s = job.trainer.grace_s;
  request.lost_after_s = job.balancer.lost_after_s;
  request.start_timeout_s = job.mpi.start_timeout_s;
  request.cores = static_cast<int>(allowed_cores(false).size());
  request.root = ::geteuid() == 0;
  request.environment = current_environment();
  if (!request.hostfile.empty()) {
    for (const HostSlots& host : read_hostfile(request.hostfile)) request.hostfile_hosts.push_back(host.host);
  }
  const bool serve = request.command == "serve";
  if (serve && !request.program.empty()) {
    throw Error(ErrorKind::usage, "`penstock serve` starts no program", "leave out --serve, or what stands after --");
  }
  const bool named = !request.hosts.empty() || !request.hostfile.empty() || !request.trainer_hosts.empty() ||
                     !request.loader_hosts.empty();
  if (named && (!cluster.file.empty() || cluster.counts_nodes())) {
    throw Error(ErrorKind::usage, "hosts are named, and a cluster chooses its own",
                "leave out --host and its like, or --nodes, --slurm and their like");
  }
  if (!cluster.file.empty()) {
    std::printf("%s\n", launch_file(job, cluster, request, mpirun).c_str());
    return 0;
  }
  std::optional<BatchNodes> nodes;
  if (cluster.counts_nodes()) {
    const std::optional<BatchPlace> place = run ? batch_place(request.environment) : std::nullopt;
    if (!place) {
      throw Error(ErrorKind::usage, "nodes are counted, and nothing says which they are",
                  "--slurm or --k8s writes what has a cluster choose them; --host or --trainer-host and --loader-host "
                  "name them");
    }
    if (place->node > 0) return serve_node(*place, job.trainer.grace_s);
    nodes.emplace(*place);
    name_hosts(groups_of(cluster, request), nodes->names(), request);
    request.agent = nodes->agent();
  }
  const std::string name = serve ? serving_name(job) : "";
  request.session_folder = new_session_folder_name();
  LaunchLine line = launch_line(request, find_mpirun(mpirun));
  if (run) {  // mpirun would wait for ever; ranks of other nodes look there. All ranks are connected to us (end_channel.h)
    const int here = named || nodes ? 0 : line.ranks;
    allow_descriptors(descriptors_of_node(here) + line.ranks, "mpirun");
  }
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
    // To somebody who reads it; a script that takes the line has read it before.
    if (::isatty(STDOUT_FILENO) != 0) {
      std::fputs(
          "penstock: run so, mpirun of Open MPI 4.1 ends with 0 whatever becomes of the job; launch --run ends "
          "with the job's exit code\n",
          stderr);
    }
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
  auto profile = std::make_shared<std::string>();
  auto raw = std::make_shared<bool>(false);
  auto mpirun = std::make_shared<std::string>("mpirun");
  auto cluster = std::make_shared<Cluster>();
  CLI::App* command =
      app.add_subcommand("launch", "write the mpirun line of a job, or run it, or what starts it in a cluster");
  add_job_arguments(*command, *arguments);
  command->add_option("-n,--ranks", request->ranks, "ranks of the whole job, trainers and loaders")->check(positive());
  command->add_option("--loaders", request->loaders, "loaders per node, instead of -n")->check(positive());
  // What follows with a blank is an override, or the job.
  command->add_option("--host", request->hosts, "hosts, as mpirun takes them")->delimiter(',')->allow_extra_args(false);
  command->add_option("--hostfile", request->hostfile, "file of hosts");
  for (const auto& [role, hosts, what] : {std::tuple("trainer", &LaunchRequest::trainer_hosts, "train"),
                                          std::tuple("loader", &LaunchRequest::loader_hosts, "load")}) {
    const std::string name = std::string("--") + role + "-host";
    CLI::Option* list = command
                            ->add_option_function<std::vector<std::string>>(
                                name,
                                [request, hosts = hosts](const std::vector<std::string>& words) {
                                  (*request).*hosts = parse_hosts(words);
                                },
                                std::string("hosts and how many ranks ") + what + " there, as a:8,b:8")
                            ->delimiter(',')
                            ->allow_extra_args(false)
                            ->type_name("HOST:N");
    command
        ->add_option_function<std::string>(
            name + "file",
            [request, hosts = hosts, option = name + "file"](const std::string& path) {
              (*request).*hosts = read_hostfile(path);
              if (hosts == &LaunchRequest::trainer_hosts) request->trainers_option = option;
            },
            "the same as a file of lines HOST slots=N")
        ->excludes(list)
        ->type_name("FILE");
  }
  command->add_option("--mpirun", *mpirun, "another mpirun")->capture_default_str();
  CLI::Option* print_flag = command->add_flag("--print")->description("print the line (the default)");
  CLI::Option* run_flag = command->add_flag("--run", *run, "run it")->excludes(print_flag);
  add_cluster(*command, cluster, {print_flag, run_flag});
  CLI::Option* serve_flag = command->add_flag("--serve", *serve, "`penstock serve` instead of `penstock run`");
  command->add_option("--idle-s", *idle_s, "passed on to `penstock serve`")->needs(serve_flag)->check(some_seconds());
  command->add_flag("--json", *json, "passed on to `penstock run`");
  command->add_flag("--quiet", *quiet, "passed on");
  command->add_option("--epochs", *epochs, "passed on")->excludes(serve_flag)->check(positive());
  command->add_option("--profile", *profile, "passed on")->type_name("FILE")->excludes(serve_flag);
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
      if (!profile->empty()) request->options.push_back("--profile=" + *profile);
      if (*raw) request->options.push_back("--raw");
      return launch(*arguments, *request, *cluster, *run, *mpirun, chosen.program);
    };
  });
}

}  // namespace penstock
