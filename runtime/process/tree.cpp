#include "runtime/process/tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>
#include <utility>

namespace penstock {
namespace {

// Small /proc files, read in one go; empty when the process is gone.
std::string read_proc(const std::string& path) {
  std::string text;
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return text;
  std::array<char, 4096> buffer;
  for (;;) {
    const ssize_t got = read(fd, buffer.data(), buffer.size());
    if (got <= 0) break;
    text.append(buffer.data(), static_cast<size_t>(got));
  }
  close(fd);
  return text;
}

bool is_number(const char* name) {
  if (*name == 0) return false;
  for (; *name != 0; ++name) {
    if (std::isdigit(static_cast<unsigned char>(*name)) == 0) return false;
  }
  return true;
}

std::vector<pid_t> numbers_in(const std::string& folder) {
  std::vector<pid_t> found;
  DIR* dir = opendir(folder.c_str());
  if (dir == nullptr) return found;
  while (const dirent* entry = readdir(dir)) {
    if (is_number(entry->d_name)) found.push_back(static_cast<pid_t>(std::atol(entry->d_name)));
  }
  closedir(dir);
  return found;
}

// State letter and parent from the `stat` of a process or a thread; the name in parentheses may hold anything, so look from
// its end.
std::pair<char, pid_t> state_and_parent(const std::string& folder) {
  const std::string text = read_proc(folder + "/stat");
  const size_t end = text.rfind(')');
  if (end == std::string::npos) return {'X', 0};
  char state = 'X';
  int parent = 0;
  if (std::sscanf(text.c_str() + end + 1, " %c %d", &state, &parent) != 2) return {'X', 0};
  return {state, parent};
}

std::pair<char, pid_t> state_and_parent(pid_t pid) {
  return state_and_parent("/proc/" + std::to_string(pid));
}

// One pass over every process. Exact where /proc/PID/task/TID/children is not: that file may leave out children when
// others exit at the same time, and a kernel may be built without it.
std::vector<pid_t> walk(pid_t root, bool with_zombies, const std::set<pid_t>& spared = {}) {
  std::multimap<pid_t, pid_t> children;
  for (const pid_t pid : numbers_in("/proc")) {
    const auto [state, parent] = state_and_parent(pid);
    if (state == 'X' || parent == 0) continue;
    if (state == 'Z' && !with_zombies) continue;
    if (spared.count(pid) != 0) continue;
    children.emplace(parent, pid);
  }
  std::vector<pid_t> found{root};
  for (size_t i = 0; i < found.size(); ++i) {
    const auto [first, last] = children.equal_range(found[i]);
    for (auto it = first; it != last; ++it) found.push_back(it->second);
  }
  found.erase(found.begin());
  return found;
}

}  // namespace

std::vector<pid_t> descendants(pid_t root) {
  return walk(root, true);
}

int signal_descendants(pid_t root, int signal) {
  int taken = 0;
  for (const pid_t pid : walk(root, false)) taken += kill(pid, signal) == 0;
  return taken;
}

bool end_descendants(double limit_s, const std::function<void(pid_t, int)>& reaped, const std::set<pid_t>& spared) {
  using Steady = std::chrono::steady_clock;
  const auto limit = Steady::now() + std::chrono::duration<double>(limit_s);
  for (;;) {
    for (const pid_t pid : walk(getpid(), false, spared)) kill(pid, SIGKILL);
    int status = 0;
    for (pid_t pid = 0; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
      if (reaped) reaped(pid, status);
    }
    if (walk(getpid(), true, spared).empty()) return true;
    if (Steady::now() >= limit) return false;
    const timespec pause{0, 2'000'000};
    nanosleep(&pause, nullptr);
  }
}

std::string signal_name(int signal) {
  static constexpr std::array<std::pair<int, const char*>, 21> kNames{{
      {SIGHUP, "SIGHUP"},   {SIGINT, "SIGINT"},   {SIGQUIT, "SIGQUIT"}, {SIGILL, "SIGILL"},   {SIGTRAP, "SIGTRAP"},
      {SIGABRT, "SIGABRT"}, {SIGBUS, "SIGBUS"},   {SIGFPE, "SIGFPE"},   {SIGKILL, "SIGKILL"}, {SIGUSR1, "SIGUSR1"},
      {SIGSEGV, "SIGSEGV"}, {SIGUSR2, "SIGUSR2"}, {SIGPIPE, "SIGPIPE"}, {SIGALRM, "SIGALRM"}, {SIGTERM, "SIGTERM"},
      {SIGCHLD, "SIGCHLD"}, {SIGCONT, "SIGCONT"}, {SIGSTOP, "SIGSTOP"}, {SIGXCPU, "SIGXCPU"}, {SIGXFSZ, "SIGXFSZ"},
      {SIGSYS, "SIGSYS"},
  }};
  for (const auto& [number, name] : kNames) {
    if (number == signal) return name;
  }
  return "signal " + std::to_string(signal);
}

bool process_has(pid_t pid, const std::string& text) {
  const std::string folder = "/proc/" + std::to_string(pid);
  return read_proc(folder + "/cmdline").find(text) != std::string::npos ||
         read_proc(folder + "/environ").find(text) != std::string::npos;
}

bool any_process_with(const std::string& text) {
  const std::vector<pid_t> all = numbers_in("/proc");
  return std::any_of(all.begin(), all.end(), [&](pid_t pid) { return process_has(pid, text); });
}

std::vector<std::string> environment_of_children(pid_t parent, const std::string& name) {
  std::vector<std::string> values;
  for (const pid_t pid : numbers_in("/proc")) {
    const auto [state, its_parent] = state_and_parent(pid);
    if (its_parent != parent || state == 'Z' || state == 'X') continue;
    const std::string text = '\0' + read_proc("/proc/" + std::to_string(pid) + "/environ");
    const std::string key = '\0' + name + '=';
    const size_t begin = text.find(key);
    if (begin != std::string::npos) values.emplace_back(text.c_str() + begin + key.size());
  }
  return values;
}

bool may_start_children(pid_t parent) {
  const std::string folder = "/proc/" + std::to_string(parent);
  for (const pid_t thread : numbers_in(folder + "/task")) {
    const char state = state_and_parent(folder + "/task/" + std::to_string(thread)).first;
    if (state != 'S' && state != 'X') return true;  // X: it has ended meanwhile
  }
  const std::string words = read_proc(folder + "/cmdline");
  for (const pid_t pid : numbers_in("/proc")) {
    const auto [state, its_parent] = state_and_parent(pid);
    if (its_parent != parent || state == 'Z' || state == 'X') continue;
    const std::string its_words = read_proc("/proc/" + std::to_string(pid) + "/cmdline");
    if (its_words == words || its_words.empty()) return true;  // empty: in the middle of exec
  }
  return false;
}

std::optional<int> status_left_by(pid_t pid) {
  // The last field. The kernel fills it in before it closes the descriptors of the process (do_exit), so whoever sees one
  // hang up is not too early.
  const std::string text = read_proc("/proc/" + std::to_string(pid) + "/stat");
  const size_t last = text.find_last_of(' ');
  const int status = last == std::string::npos ? 0 : std::atoi(text.c_str() + last);
  return status != 0 ? std::optional<int>(status) : std::nullopt;
}

std::string describe_status(int status) {
  if (WIFSIGNALED(status)) return "was killed by " + signal_name(WTERMSIG(status));
  return "exited with status " + std::to_string(WEXITSTATUS(status));
}

int shell_code(int status) {
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace penstock
