#include <algorithm>
#include <cctype>
#include <cmath>
#include <string_view>

#include "launch/launch_files.h"
#include "launch/launch_line.h"
#include "runtime/base/error.h"

namespace penstock {
namespace {

bool is_apptainers(const std::string& image) {
  return image.ends_with(".sif") || image.find("://") != std::string::npos;
}

// The container's part of the srun line; each line ends as the next one begins.
std::string container(const LaunchFile& file) {
  if (file.image.empty()) return "";
  if (is_apptainers(file.image)) {
    return "  apptainer exec " + std::string(file.gpus > 0 ? "--nv " : "") + "--bind \"$PWD\" --pwd \"$PWD\" " +
           shell_quoted({file.image}) + " \\\n";
  }
  return "  --container-image=" + shell_quoted({file.image}) +
         " --container-mounts=\"$PWD:$PWD\" --container-workdir=\"$PWD\" \\\n";
}

}  // namespace

std::string slurm_script(const LaunchFile& file) {
  // The path of mpirun's agent lies below it, and goes through a shell on the way.
  const bool plain = std::all_of(file.folder.begin(), file.folder.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c >= 0x80 ||
           std::string_view("/._+,=@-").find(static_cast<char>(c)) != std::string_view::npos;
  });
  if (!plain) {
    throw Error(ErrorKind::usage,
                "'" + file.folder + "': mpirun and the shell it calls would misread a path with such characters",
                "start the job from a folder of letters, digits and / . _ + , = @ -");
  }
  std::string text = "#!/bin/bash\n";
  text +=
      "# Written by `penstock launch --slurm`; start it with sbatch. `scancel --batch --signal=TERM JOB` ends it in "
      "good\n"
      "# order: programs have trainer.grace_s to save their state. A plain scancel gives them Slurm's KillWait at "
      "most.\n"
      "# The folder, the job file, the data and the program have the same paths on every node.\n";
  if (!file.image.empty()) text += "# Not tested on a cluster: this script's part with the container.\n";
  int nodes = 0;
  for (const NodeGroup& group : file.groups) {
    if (nodes > 0) text += "#SBATCH hetjob\n";
    nodes += group.nodes;
    const int cpus = group.trainers + group.loaders * file.loader_threads;
    text += "#SBATCH --job-name=" + file.name + " --nodes=" + std::to_string(group.nodes) +
            " --ntasks-per-node=1 --cpus-per-task=" + std::to_string(cpus) + "\n";
    if (group.trainers == 0) {
      const auto memory_gb = static_cast<int>(std::ceil(group.loaders * file.loader_memory_gb));
      text += "#SBATCH --mem=" + std::to_string(memory_gb) + "G\n";
    } else if (file.gpus > 0) {
      text += "#SBATCH --gpus-per-node=" + std::to_string(file.gpus) + "\n";
    }
    // Slurm would end the job with the first node that it loses, or begin it anew after a good end without that node.
    text += "#SBATCH --no-kill --no-requeue\n";
    if (nodes == group.nodes) {
      constexpr double kToEnd_s = 30;  // beyond the grace
      text += "#SBATCH --signal=B:TERM@" + std::to_string(static_cast<int>(std::ceil(file.grace_s + kToEnd_s))) + "\n";
    }
  }
  text += "set -euo pipefail\ncd " + shell_quoted({file.folder}) + "\n";
  text +=
      "\n# Where the nodes find each other: one task a node, of which the first launches, and starts what mpirun wants "
      "on\n"
      "# the others through this folder. It needs neither ssh nor srun in a container; every node has to see it.\n"
      "PENSTOCK_NODES=$(mktemp -d \"$PWD/penstock-nodes-XXXXXX\")\n"
      "touch \"$PENSTOCK_NODES\"/node{0.." +
      std::to_string(nodes - 1) +
      "}\n"
      "export PENSTOCK_NODES\n"
      "trap 'rm -rf \"$PENSTOCK_NODES\"' EXIT\n\n";
  text += "srun " + std::string(file.groups.size() > 1 ? "--het-group=0,1 " : "") +
          "--ntasks-per-node=1 --mpi=none --cpu-bind=none --no-kill --kill-on-bad-exit=0 --wait=0 \\\n";
  text += container(file);
  std::vector<std::string> command = file.command;
  if (file.groups.size() == 1) {
    const NodeGroup& all = file.groups[0];
    command.insert(command.end(), {"--nodes=" + std::to_string(all.nodes), "--loaders=" + std::to_string(all.loaders)});
  } else {
    command.push_back("--trainer-nodes=" + std::to_string(file.groups[0].nodes) + ":" +
                      std::to_string(file.groups[0].trainers) +
                      (file.groups[0].loaders > 0 ? ":" + std::to_string(file.groups[0].loaders) : ""));
    command.push_back("--loader-nodes=" + std::to_string(file.groups[1].nodes) + ":" +
                      std::to_string(file.groups[1].loaders));
  }
  if (!file.program.empty()) command.push_back("--");
  command.insert(command.end(), file.program.begin(), file.program.end());
  text += "  " + shell_quoted(command) + " &\n";
  // srun itself would answer SIGTERM by killing the tasks, and scancel --signal=TERM tells mpirun's daemons to do so.
  return text +
         "task=$!\n"
         "# The first node's task is on this node, too.\n"
         "trap 'kill -TERM \"$(cat \"$PENSTOCK_NODES/pid\" 2>/dev/null)\" 2>/dev/null || exit 143' TERM\n"
         "while kill -0 \"$task\" 2>/dev/null; do wait \"$task\" || true; done\n"
         "wait \"$task\"";
}

}  // namespace penstock
