#include "launch/batch_nodes.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "launch/launch_line.h"
#include "runtime/base/clock.h"
#include "runtime/base/error.h"
#include "runtime/base/host_name.h"
#include "runtime/base/memory.h"
#include "runtime/process/launcher.h"
#include "runtime/process/signals.h"
#include "runtime/process/tree.h"

namespace penstock {
namespace {

// The lines of a node's file: its name, the command for it, the command's exit code.
constexpr size_t kName = 0;
constexpr size_t kCommand = 1;

std::string file_of(const BatchPlace& place, int node) {
  return place.folder + "/node" + std::to_string(node);
}

// The complete ones. Nothing where the file is gone: the job has ended.
std::optional<std::vector<std::string>> lines_of(const std::string& path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  std::stringstream text;
  text << file.rdbuf();
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line) && !text.eof();) lines.push_back(line);
  return lines;
}

void append_line(const std::string& path, const std::string& line) {
  std::ofstream file(path, std::ios::app);
  file << line << '\n' << std::flush;
}

void pause_a_moment() {
  const timespec pause{0, 200'000'000};
  nanosleep(&pause, nullptr);
}

void announce(const BatchPlace& place) {
  const std::string path = file_of(place, place.node);
  struct stat folder {};
  if (lstat(place.folder.c_str(), &folder) != 0 || !S_ISDIR(folder.st_mode) || folder.st_uid != geteuid() ||
      (folder.st_mode & 077) != 0) {
    throw Error(ErrorKind::usage,
                std::string(kNodesVariable) + " is '" + place.folder + "', which is no private folder of this user",
                "make it as the script of `penstock launch --slurm` does, where all nodes see it");
  }
  if (access(path.c_str(), W_OK) != 0) {
    throw Error(ErrorKind::usage,
                "there is no file '" + path + "' for this node, number " + std::to_string(place.node) + " of " +
                    std::to_string(place.nodes),
                "the script of `penstock launch --slurm` makes one for each node; srun has to start one task a node");
  }
  append_line(path, host_name());
}

// Names of hosts are compared as Open MPI writes them: it leaves the domain out.
constexpr const char* kAgent = R"(#!/bin/sh
# HOST COMMAND...: what mpirun calls where it would call ssh. Written by penstock launch --run.
wanted=${1%%.*}
shift
for file in "${0%/*}"/node*; do
  read -r host <"$file" || continue
  [ "${host%%.*}" = "$wanted" ] || continue
  printf '%s\n' "$*" >>"$file"
  until code=$(sed -n 3p "$file") && [ -n "$code" ]; do
    [ -e "$file" ] || exit 255
    sleep 0.2
  done
  exit "$code"
done
echo "penstock: '$wanted' is none of this job's nodes" >&2
exit 255
)";

}  // namespace

std::optional<BatchPlace> batch_place(const std::map<std::string, std::string>& environment) {
  const auto folder = environment.find(kNodesVariable);
  if (folder == environment.end() || folder->second.empty()) return std::nullopt;
  const LauncherInfo launcher = detect_launcher(environment);
  if (!launcher.many_tasks()) return BatchPlace{folder->second, 0, 1};
  return BatchPlace{folder->second, launcher.rank.value_or(0), launcher.world_size};
}

// Delegates, so that the folder is removed, which tells the other nodes, where this throws once it is known to be ours.
BatchNodes::BatchNodes(BatchPlace place, double limit_s) : BatchNodes(Announced{(announce(place), std::move(place))}) {
  const MonotonicClock clock;
  const Nanoseconds deadline = clock.now() + static_cast<Nanoseconds>(limit_s * 1e9);
  for (int node = 0; node < place_.nodes;) {
    const auto lines = lines_of(file_of(place_, node));
    if (!lines) {
      throw Error(ErrorKind::peer_lost, "'" + place_.folder + "' is gone: the job was ended before it began");
    }
    if (lines->size() > kName) {
      names_.push_back((*lines)[kName]);
      ++node;
      continue;
    }
    if (clock.now() > deadline) {
      throw Error(ErrorKind::peer_lost,
                  "nothing was heard of node " + std::to_string(node) + " of this job's " +
                      std::to_string(place_.nodes) + " (counted from 0) within " +
                      std::to_string(static_cast<int>(limit_s)) + " s",
                  "does that node see the folder '" + place_.folder + "', and can it start penstock?");
    }
    pause_a_moment();
  }
  for (size_t i = 0; i < names_.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (names_[i] != names_[j]) continue;
      throw Error(ErrorKind::usage,
                  "nodes " + std::to_string(j) + " and " + std::to_string(i) + " are both called '" + names_[i] + "'",
                  "one task a node (--ntasks-per-node=1), and every node a host name of its own");
    }
  }
  append_line(place_.folder + "/pid", std::to_string(getpid()));
  std::ofstream(agent()) << kAgent << std::flush;
  if (chmod(agent().c_str(), 0700) != 0) {
    throw Error(ErrorKind::runtime, "cannot write '" + agent() + "'", "is the disk full?");
  }
}

BatchNodes::~BatchNodes() {
  for (const std::string& path : {agent(), place_.folder + "/pid"}) (void)std::remove(path.c_str());
  for (int node = 0; node < place_.nodes; ++node) (void)std::remove(file_of(place_, node).c_str());
  (void)rmdir(place_.folder.c_str());
}

std::string BatchNodes::agent() const {
  return place_.folder + "/agent";
}

int serve_node(const BatchPlace& place, double grace_s) {
  announce(place);
  SignalFd signals({SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2});
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  const std::string path = file_of(place, place.node);
  const MonotonicClock clock;
  const auto after = [&clock](double s) { return clock.now() + static_cast<Nanoseconds>(s * 1e9); };
  const auto asked_to_end = [&signals] {
    bool asked = false;
    while (const auto arrived = signals.next()) asked |= *arrived != SIGUSR1 && *arrived != SIGUSR2;
    return asked;
  };
  Nanoseconds deadline = after(2 * BatchNodes::kMeet_s);
  std::string command;
  while (command.empty()) {
    const auto lines = lines_of(path);
    if (!lines || asked_to_end()) return 0;
    if (lines->size() > kCommand) command = (*lines)[kCommand];
    if (clock.now() > deadline) {
      throw Error(ErrorKind::peer_lost, "this node has been told nothing by the job's first one",
                  "what the first node's `penstock launch` said tells why");
    }
    if (command.empty()) pause_a_moment();
  }
  const pid_t pid = fork();
  if (pid < 0) throw Error(ErrorKind::runtime, system_error_text("cannot start a process"));
  if (pid == 0) {
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    _exit(127);
  }
  bool ending = false;
  for (int status = 0;;) {
    const pid_t ended = waitpid(-1, &status, WNOHANG);
    if (ended < 0 && errno == ECHILD) return 0;
    if (ended == pid && access(path.c_str(), W_OK) == 0) append_line(path, std::to_string(shell_code(status)));
    if (ended > 0) continue;
    if (asked_to_end() && !ending) {
      ending = true;
      deadline = after(grace_s + kHelpersEnd_s);
    }
    if (ending && clock.now() > deadline) {
      std::fprintf(stderr, "penstock: what the job left on host %s is ended, %.0f s after it was asked to\n",
                   host_name().c_str(), grace_s + kHelpersEnd_s);
      constexpr double kEndOrphans_s = 5;
      end_descendants(kEndOrphans_s);
      return 0;
    }
    pause_a_moment();
  }
}

}  // namespace penstock
