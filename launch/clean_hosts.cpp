#include "launch/clean_hosts.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <set>

#include "launch/launch_line.h"
#include "runtime/base/clock.h"
#include "runtime/base/memory.h"
#include "runtime/process/exec_list.h"

namespace penstock {

namespace {

std::string script_for(const std::string& folder) {
  return "folder=" + shell_quoted({folder}) +
         "\n"
         "for process in /proc/[0-9]*; do\n"
         "  pid=${process#/proc/}\n"
         "  [ \"$pid\" != $$ ] && tr '\\0' ' ' <\"$process/cmdline\" 2>/dev/null | grep -qF \"$folder\" && kill -9 "
         "\"$pid\"\n"
         "done\n"
         "rm -rf \"$folder\"\n";
}

// 0: it could not be started.
pid_t start(const std::vector<std::string>& words, const std::string& standard_input) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return 0;
  const UniqueFd reading(ends[0]);
  const UniqueFd writing(ends[1]);
  // A pipe holds more than that.
  if (::write(writing.get(), standard_input.data(), standard_input.size()) < 0) return 0;
  // It has a process group of its own, so that what it starts can be ended with it; signals that launch blocks are not
  // blocked in it.
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, reading.get(), STDIN_FILENO);
  posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_addopen(&files, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  const std::vector<char*> argv = exec_list(words);
  pid_t pid = 0;
  const int problem = ::posix_spawnp(&pid, argv[0], &files, &attributes, argv.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  return problem == 0 ? pid : 0;
}

}  // namespace

void clean_hosts(const std::vector<std::string>& hosts, const std::string& folder,
                 const std::vector<std::string>& agent, double limit_s) {
  std::vector<std::string> command = agent;
  if (agent[0] == "ssh" || agent[0].ends_with("/ssh")) {
    command.insert(command.end(), {"-o", "BatchMode=yes", "-o", "ConnectTimeout=3"});
  }
  constexpr size_t kAtOnce = 64;
  std::set<std::string> left(hosts.begin(), hosts.end());
  std::set<pid_t> running;
  const MonotonicClock clock;
  const Nanoseconds until = clock.now() + static_cast<Nanoseconds>(limit_s * 1e9);
  while (!(left.empty() && running.empty()) && clock.now() < until) {
    for (; !left.empty() && running.size() < kAtOnce; left.erase(left.begin())) {
      std::vector<std::string> words = command;
      words.insert(words.end(), {*left.begin(), "sh", "-s"});
      if (const pid_t pid = start(words, script_for(folder)); pid > 0) running.insert(pid);
    }
    std::erase_if(running, [](pid_t pid) { return ::waitpid(pid, nullptr, WNOHANG) != 0; });
    if (!running.empty()) ::usleep(20'000);
  }
  for (const pid_t pid : running) {
    ::kill(-pid, SIGKILL);
    (void)::waitpid(pid, nullptr, 0);
  }
}

}  // namespace penstock
