#include "runtime/process/program_start.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "runtime/base/cpu_set.h"
#include "runtime/process/exec_list.h"
#include "runtime/process/placement.h"

namespace penstock {
namespace {

bool set_affinity(const std::vector<int>& cpus) {
  const CpuSet set(cpus);
  return sched_setaffinity(0, set.bytes(), set.get()) == 0;
}

bool same_file(int a, int b) {
  struct stat one {};
  struct stat other {};
  return fstat(a, &one) == 0 && fstat(b, &other) == 0 && one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

void replace_stdin() {
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  if (null > 0) {
    dup2(null, STDIN_FILENO);
    close(null);
  }
}

// In the child: everything between fork and exec.
[[noreturn]] void become(const ProgramSpec& spec, pid_t helper, int exec_pipe, const std::array<int, 2>& outputs) {
  const auto give_up = [&](const std::string& what) {
    const std::string text = what + ": " + std::strerror(errno);
    [[maybe_unused]] const ssize_t written = write(exec_pipe, text.data(), text.size());
    _exit(127);
  };
  setsid();
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != helper) _exit(127);  // it died before the line above
  if (!spec.keep_stdin) replace_stdin();
  if (outputs[0] >= 0) dup2(outputs[0], STDOUT_FILENO);
  if (outputs[1] >= 0) dup2(outputs[1], STDERR_FILENO);
  if (!spec.cpus.empty() && !set_affinity(spec.cpus)) give_up("cannot run on cores " + cpu_list_text(spec.cpus));
  const std::vector<char*> argv = exec_list(spec.argv);
  std::vector<char*> environment = exec_list(spec.environment);
  environ = environment.data();  // so that execvp looks in the program's PATH
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execvp(argv[0], argv.data());
  give_up("cannot start '" + spec.argv[0] + "'");
  _exit(127);
}

// The program's ends; -1 where it writes to ours directly.
std::array<int, 2> open_outputs(std::array<OutputRelay, 2>& relays) {
  for (OutputRelay& relay : relays) relay.close_now();
  std::array<int, 2> outputs{-1, -1};
  outputs[0] = relays[0].open_for(STDOUT_FILENO);
  outputs[1] = same_file(STDOUT_FILENO, STDERR_FILENO) ? outputs[0] : relays[1].open_for(STDERR_FILENO);
  return outputs;
}

ProgramStart no_start(const ProgramSpec& spec, const std::string& what, int why) {
  ProgramStart start;
  start.problem = "cannot start '" + spec.argv[0] + "': " + what + ": " + std::strerror(why);
  return start;
}

}  // namespace

ProgramStart start_program(const ProgramSpec& spec, std::array<OutputRelay, 2>& relays) {
  std::array<int, 2> exec_pipe{-1, -1};
  if (pipe2(exec_pipe.data(), O_CLOEXEC) != 0) return no_start(spec, "no pipe", errno);
  const pid_t helper = getpid();
  std::array<int, 2> outputs{-1, -1};
  if (spec.relay_output) outputs = open_outputs(relays);
  const pid_t pid = fork();
  if (pid == 0) become(spec, helper, exec_pipe[1], outputs);
  const int why = errno;
  close(exec_pipe[1]);
  if (outputs[0] >= 0) close(outputs[0]);
  if (outputs[1] >= 0 && outputs[1] != outputs[0]) close(outputs[1]);
  if (pid < 0) {
    close(exec_pipe[0]);
    return no_start(spec, "no process", why);
  }
  replace_stdin();
  return {pid, exec_pipe[0], ""};
}

std::string exec_problem(int exec_pipe) {
  std::string text;
  std::array<char, 1024> buffer;
  for (;;) {
    const ssize_t got = read(exec_pipe, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    text.append(buffer.data(), static_cast<size_t>(got));
  }
  close(exec_pipe);
  return text;
}

}  // namespace penstock
