// mpirun itself: which one there is, and a job under it (launch_line.h).
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

#include "launch/clean_hosts.h"
#include "launch/end_channel.h"
#include "launch/launch_line.h"
#include "runtime/base/clock.h"
#include "runtime/base/error.h"
#include "runtime/base/host_name.h"
#include "runtime/base/utf8.h"
#include "runtime/process/exec_list.h"
#include "runtime/process/session_folder.h"
#include "runtime/process/signals.h"
#include "runtime/process/tree.h"

namespace penstock {
namespace {

constexpr const char* kInstallHint = "install Open MPI 4 or 5 (Debian: openmpi-bin) and have its mpirun in PATH";

// Forks and execs; the pipe, closed by exec, tells why it failed. `prepare` runs in the child.
template <class Prepare>
pid_t spawn(const std::vector<std::string>& argv, Prepare prepare) {
  std::array<int, 2> failed{};
  if (pipe2(failed.data(), O_CLOEXEC) != 0) throw Error(ErrorKind::runtime, "cannot make a pipe");
  std::vector<char*> list = exec_list(argv);
  const pid_t pid = fork();
  if (pid == 0) {
    prepare();
    execvp(list[0], list.data());
    const int why = errno;
    [[maybe_unused]] const ssize_t written = write(failed[1], &why, sizeof why);
    _exit(127);
  }
  close(failed[1]);
  int why = pid < 0 ? errno : 0;
  if (pid > 0 && read(failed[0], &why, sizeof why) == static_cast<ssize_t>(sizeof why)) {
    waitpid(pid, nullptr, 0);
  }
  close(failed[0]);
  if (why != 0) {
    throw Error(ErrorKind::usage, "cannot start '" + argv[0] + "': " + std::strerror(why), kInstallHint);
  }
  return pid;
}

bool is_ignored(int signal) {
  struct sigaction action {};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

// Processes that the kernel has killed since this host started because memory ran out.
uint64_t count_oom_kills() {
  std::ifstream counts("/proc/vmstat");
  std::string name;
  for (uint64_t value = 0; counts >> name >> value;) {
    if (name == "oom_kill") return value;
  }
  return 0;
}

uint64_t memory_limit_here() {
  rlimit limit{};
  return ::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY ? limit.rlim_cur : 0;
}

}  // namespace

MpiFound parse_mpirun_version(const std::string& text) {
  const std::string line = first_line(text);
  const size_t name = line.find("(Open MPI)");
  MpiFound found;
  if (name != std::string::npos &&
      std::sscanf(line.c_str() + name, "(Open MPI) %d.%d.%d", &found.major, &found.minor, &found.patch) >= 2 &&
      (found.major == 4 || found.major == 5)) {
    return found;
  }
  if (name != std::string::npos) {
    throw Error(ErrorKind::usage, "mpirun is '" + line + "'; only Open MPI 4 and 5 are known here", kInstallHint);
  }
  std::string what = "an unknown program ('" + line + "')";
  if (text.find("HYDRA") != std::string::npos) what = "MPICH's (Hydra)";
  if (text.find("Intel(R) MPI") != std::string::npos) what = "Intel MPI's";
  throw Error(ErrorKind::usage, "the mpirun found is " + what + ", not Open MPI's", kInstallHint);
}

namespace {

// For PREFIX/bin/mpirun it is PREFIX/lib, where libmpi lies in it. Debian's is elsewhere, and found by everybody.
std::string library_folder_of(const std::string& mpirun) {
  namespace fs = std::filesystem;
  std::vector<fs::path> candidates;
  if (mpirun.find('/') != std::string::npos) {
    candidates.emplace_back(mpirun);
  } else {
    const char* path = std::getenv("PATH");
    std::istringstream folders(path != nullptr ? path : "");
    for (std::string folder; std::getline(folders, folder, ':');) candidates.push_back(fs::path(folder) / mpirun);
  }
  std::error_code error;
  for (const fs::path& candidate : candidates) {
    if (::access(candidate.c_str(), X_OK) != 0) continue;
    const fs::path prefix = fs::absolute(candidate, error).parent_path().parent_path();
    for (const char* name : {"lib", "lib64"}) {
      if (fs::exists(prefix / name / "libmpi.so.40", error)) return (prefix / name).string();
    }
    return {};
  }
  return {};
}

}  // namespace

MpiFound find_mpirun(const std::string& mpirun) {
  std::array<int, 2> output{};
  if (pipe2(output.data(), O_CLOEXEC) != 0) throw Error(ErrorKind::runtime, "cannot make a pipe");
  pid_t pid = -1;
  try {
    pid = spawn({mpirun, "--version"}, [&] {
      dup2(output[1], STDOUT_FILENO);
      dup2(output[1], STDERR_FILENO);
    });
  } catch (...) {
    close(output[0]);
    close(output[1]);
    throw;
  }
  close(output[1]);
  std::string text;
  std::array<char, 512> buffer;
  pollfd readable{output[0], POLLIN, 0};
  while (poll(&readable, 1, 20'000) == 1) {
    const ssize_t got = read(output[0], buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0 || text.size() > 65536) break;
    text.append(buffer.data(), static_cast<size_t>(got));
  }
  close(output[0]);
  kill(pid, SIGKILL);  // it has said all it will
  waitpid(pid, nullptr, 0);
  MpiFound found = parse_mpirun_version(text);
  found.mpirun = mpirun;
  found.library_folder = library_folder_of(mpirun);
  return found;
}

int launch_exit_code(int wait_status, const JobOutcome& job, int interrupted_by) {
  if (interrupted_by != 0) return 128 + interrupted_by;
  if (job.any()) return job.code();
  const int code = WIFSIGNALED(wait_status) ? 128 : WEXITSTATUS(wait_status);
  if (code == 0 || code >= 128) return static_cast<int>(ErrorKind::peer_lost);
  return code <= 5 ? code : static_cast<int>(ErrorKind::runtime);
}

std::string closing_line(const LaunchEnd& end, const JobOutcome& job) {
  if (end.interrupted_by != 0) return {};
  std::string text;
  if (WIFSIGNALED(end.wait_status) && !end.ended_mpirun) {
    const bool complete = job.any() && job.code() == 0;
    text = (complete ? "the job is complete; mpirun (host " : "mpirun (host ") + end.host + ") was killed by " +
           signal_name(WTERMSIG(end.wait_status)) + (complete ? " afterwards" : ", and the job with it");
  } else if (job.any()) {
    text = job.summary();
  } else if (end.ended_mpirun) {
    text = "the job failed with exit code 5: mpirun started no rank that could be heard";
  } else if (WIFEXITED(end.wait_status)) {
    text = "the job did not start: mpirun ended with status " + std::to_string(WEXITSTATUS(end.wait_status)) +
           " before any rank was heard; what it said stands above";
  }
  if (!text.empty() && end.oom_kills > 0) {
    text += "; on this host memory ran out and the kernel killed " + std::to_string(end.oom_kills) +
            (end.oom_kills == 1 ? " process" : " processes") +
            " meanwhile (see dmesg); lower loader.threads, loader.cache_gb, loader.prefetch or the splits' batch_size";
  }
  // MPI_Init ends a rank that gets no memory, which then cannot say why.
  const bool started = job.any_running() || job.code() != static_cast<int>(ErrorKind::peer_lost);
  if (!text.empty() && !started && end.memory_limit > 0) {
    text += "; on this host `ulimit -v` allows each process " + std::to_string(end.memory_limit / 1'000'000) +
            " MB, which may be too little for MPI: raise it";
  }
  return text;
}

namespace {

// A rank that dies before it can say anything leaves the others in MPI_Init, and under recovery mpirun waits with them.
// mpirun's children show which of this host's ranks are there; on other hosts only time tells. One that mpirun has not
// started yet is not there either: where hundreds of ranks share a few cores, mpirun may wait for a core for many seconds.
// So mpirun has to sleep at two looks in a row, and its children have to be the same before and after each of them.
class DeadAtStart {
 public:
  static constexpr Nanoseconds kLookAgain = kSecond / 2;

  DeadAtStart(const LaunchLine& line, pid_t mpirun)
      : line_(line), own_name_(own_name_among(line.rank_hosts)), mpirun_(mpirun) {}

  void look(EndListener& ends, Nanoseconds now) {
    const std::vector<std::string> before = std::exchange(settled_, {});
    starting_ = false;
    const std::vector<int> late = ends.job().late(now);
    if (late.empty()) return;
    const std::vector<std::string> there = ranks_there();
    if (there.empty()) return;  // it has daemons start them
    starting_ = may_start_children(mpirun_) || ranks_there() != there;
    if (starting_) return;
    settled_ = there;
    if (before != there) return;
    for (const int rank : late) {
      const auto place = static_cast<size_t>(rank);
      const std::string host = place < line_.rank_hosts.size() ? line_.rank_hosts[place] : "";
      if (line_.remote && host != own_name_) continue;
      const bool alive = std::find(there.begin(), there.end(), std::to_string(rank)) != there.end();
      if (!alive) ends.died_unheard(rank, host_name());
    }
  }
  // Whether ranks were missing at the last look, and mpirun may have been about to start them.
  bool starting() const noexcept { return starting_; }

 private:
  std::vector<std::string> ranks_there() const { return environment_of_children(mpirun_, "OMPI_COMM_WORLD_RANK"); }

  const LaunchLine& line_;
  const std::string own_name_;
  const pid_t mpirun_;
  std::vector<std::string> settled_;  // who was there at the last look, if mpirun slept; else empty
  bool starting_ = false;
};

constexpr Nanoseconds kRepeatAfter = 2 * kSecond;
constexpr double kBeginHere_s = 60;  // for the first rank, where no other host is waited for
// Last words are waited for this long after mpirun has ended. mpirun hears of a rank's end by a connection of its own,
// and TCP may have to send what that rank said again, which it does after 0.2, 0.6 and 1.4 s.
constexpr Nanoseconds kLateWords = 2 * kSecond;

// Whether that process was sent the signal, which it blocks.
bool is_pending(pid_t pid, int number) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  const std::string key = "ShdPnd:";
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with(key)) continue;
    return (std::strtoull(line.c_str() + key.size(), nullptr, 16) >> (number - 1) & 1U) != 0;
  }
  return false;
}

// The signals that asked for the job's end, and what mpirun is sent for them. It is apart from the loop that waits for
// mpirun, because one request may come by several ways, and is repeated until mpirun has ended or its time is over.
class RequestsToEnd {
 public:
  RequestsToEnd(const LaunchLine& line, pid_t mpirun, const JobOutcome& job, const Clock& clock)
      : line_(line), mpirun_(mpirun), job_(job), clock_(clock) {}

  void ask(int number) {
    asked_ = true;
    if (in_order_at_ && clock_.now() - *in_order_at_ < EndRequest::kSameRequest) return;
    // Where trainer 0 has not begun on this host, what is served here under the name is another job.
    const bool served_here = line_.end_in_order && job_.began_on(0, host_name());
    if (number == SIGTERM && served_here && line_.end_in_order()) {
      in_order_at_ = clock_.now();
      return;
    }
    interrupted_by_ = number;
    if (!first_at_) first_at_ = clock_.now();
    const EndRequest::Answer answer = request_.arrived(number, clock_.now());
    if (answer == EndRequest::Answer::nothing) return;
    sent_ = answer == EndRequest::Answer::at_once ? kEndAtOnce : kEndInOrder;
    send();
  }

  // kill(1) of mpirun alone means the job. Where it was for the whole group, we have it too.
  void look_at_mpirun() {
    for (const int number : {SIGTERM, SIGINT}) {
      if (!asked_ && is_pending(mpirun_, number)) ask(number);
    }
  }

  // There may have been no ranks when mpirun was sent it first.
  void repeat() {
    if (repeat_at_ && clock_.now() > *repeat_at_) send();
  }

  int interrupted_by() const noexcept { return interrupted_by_; }
  // Why mpirun is to be ended, where the first signal came too long ago; empty: it is not. Ranks leave MPI_Finalize three
  // seconds behind the grace.
  std::string overdue(const JobOutcome& job) const {
    if (!first_at_) return {};
    const std::string left = job.left();
    const double limit_s = line_.grace_s + (left.empty() || line_.end_in_order ? kMpirunEnds_s : kRanksEnd_s);
    if (as_seconds(clock_.now() - *first_at_) <= limit_s) return {};
    char after[32];
    std::snprintf(after, sizeof after, " after %.0f s", limit_s);
    if (left.empty()) return std::string("mpirun has not ended") + after;
    return left + (left.ends_with(" more") ? " are" : " is") + " still there" + after;
  }

 private:
  static constexpr double kRanksEnd_s = 4;
  static constexpr double kMpirunEnds_s = 8;

  void send() {
    kill(mpirun_, sent_);
    repeat_at_ = clock_.now() + kRepeatAfter;
  }

  const LaunchLine& line_;
  const pid_t mpirun_;
  const JobOutcome& job_;
  const Clock& clock_;
  EndRequest request_;
  bool asked_ = false;
  int interrupted_by_ = 0;
  int sent_ = kEndInOrder;
  std::optional<Nanoseconds> in_order_at_;
  std::optional<Nanoseconds> repeat_at_;
  std::optional<Nanoseconds> first_at_;
};

void say_that_mpirun_is_ended(const std::string& why, const EndListener& ends, bool remote) {
  std::fprintf(stderr, "penstock: %s; mpirun is ended\n", why.c_str());
  if (ends.job().any()) return;
  const std::string hosts = "a host may not answer or ask for a password, and every host must reach this one at ";
  std::fprintf(stderr, "  help: see what mpirun said; limits of this shell may be too small for it (ulimit -a)%s\n",
               remote ? ("; " + hosts + ends.address()).c_str() : "");
}

}  // namespace

int run_launch_line(const LaunchLine& line) {
  const char* const remedy = "set TMPDIR to a folder you may write to";
  // Forked before we hold the folder: what it inherited would be held too.
  std::optional<FolderKeeper> keeper;
  if (!line.session_folder.empty()) keeper.emplace(line.session_folder, line.grace_s + kHelpersEnd_s);
  if (!line.session_folder.empty() && mkdir(line.session_folder.c_str(), 0700) != 0 && errno != EEXIST) {
    throw Error(ErrorKind::runtime,
                "cannot make the session folder '" + line.session_folder + "': " + std::strerror(errno), remedy);
  }
  // mpirun's own server and the ranks' segments lie there; where they do not fit, mpirun says much and does not end.
  if (struct statvfs disk{}; !line.session_folder.empty() && ::statvfs(line.session_folder.c_str(), &disk) == 0) {
    const uint64_t free_mb = static_cast<uint64_t>(disk.f_bavail) * disk.f_frsize / 1'000'000;
    if (free_mb < 17) {
      (void)rmdir(line.session_folder.c_str());
      throw Error(ErrorKind::runtime,
                  "there are " + std::to_string(free_mb) + " MB free where '" + line.session_folder +
                      "' is, and mpirun needs some 16",
                  "free some, or set TMPDIR to a folder with more");
    }
  }
  SessionFolder folder(line.session_folder);
  if (!line.session_folder.empty() && !folder.held()) {
    throw Error(ErrorKind::runtime,
                "the session folder '" + line.session_folder + "' is not a private folder of this user", remedy);
  }
  block_signal_of_writes(SIGPIPE);  // who reads what we say may leave before the job (`2>&1 | head`)
  SignalFd signals({SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGCHLD});
  // A terminal that is closed, or Ctrl-\: without us nobody would remove the session folder. what nohup has set stands.
  std::optional<SignalFd> hang_up;
  if (!is_ignored(SIGHUP)) hang_up.emplace(std::initializer_list<int>{SIGHUP, SIGQUIT});
  const MonotonicClock clock;
  const double begin_s = line.remote ? line.start_timeout_s : std::min(line.start_timeout_s, kBeginHere_s);
  EndListener ends({line.ranks, begin_s, line.start_timeout_s, line.grace_s, line.lost_after_s, line.rank_hosts},
                   line.remote, clock.now());
  std::vector<std::string> argv = line.argv;
  // By their names alone: what a command line says, everybody on the machine can read.
  const std::array<std::string, 4> exported{"-x", kEndChannelVariable, "-x", kEndTokenVariable};
  if (line.second_part > 0)
    argv.insert(argv.begin() + static_cast<std::ptrdiff_t>(line.second_part), exported.begin(), exported.end());
  argv.insert(argv.begin() + 1, exported.begin(), exported.end());
  const pid_t parent = getpid();
  // What loses all its parents on this node (a rank and its helper that are killed together) becomes a child of ours.
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  // mpirun stays in our process group: in one of its own it could not read the terminal.
  const pid_t pid = spawn(argv, [&] {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // the ranks notice, and give their programs the grace
    if (getppid() != parent) _exit(127);
    // These are ours to pass on (signals.h). mpirun resets the mask of what it starts.
    sigset_t ours;
    sigemptyset(&ours);
    for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) sigaddset(&ours, number);
    sigprocmask(SIG_SETMASK, &ours, nullptr);
    // mpirun's hwloc would look for X displays, asking what localhost is for each of ten, twice: seconds, where the
    // machine has to ask a name server. They are nothing to a job.
    setenv("HWLOC_COMPONENTS", "-gl", 0);
    setenv(kEndChannelVariable, ends.address().c_str(), 1);
    setenv(kEndTokenVariable, ends.token().c_str(), 1);
  });
  int status = 0;
  const uint64_t oom_kills_before = count_oom_kills();
  RequestsToEnd requests(line, pid, ends.job(), clock);
  DeadAtStart dead(line, pid);
  Nanoseconds look_for_dead_at = 0;
  bool killed = false;
  bool asked_to_end = false;  // the programs, for rank 0 is gone
  bool awaited = false;       // and said so
  for (;;) {
    int of_child = 0;
    const pid_t ended = waitpid(-1, &of_child, WNOHANG);
    if (ended == pid) status = of_child;
    if (ended == pid || (ended < 0 && errno != EINTR)) break;
    if (ended > 0) continue;
    requests.repeat();
    if (!killed && clock.now() > look_for_dead_at) {
      dead.look(ends, clock.now());
      look_for_dead_at = clock.now() + DeadAtStart::kLookAgain;
    }
    if (!asked_to_end && ends.job().wants_an_end(clock.now())) {
      asked_to_end = true;
      kill(pid, kEndInOrder);
    }
    std::string why = killed ? "" : ends.job().stuck(clock.now());
    if (why.empty() && !killed) why = requests.overdue(ends.job());
    if (!why.empty()) {
      killed = true;
      if (requests.interrupted_by() != 0) {
        why = signal_name(requests.interrupted_by()) + " asked for the job's end, and " + why;
      }
      say_that_mpirun_is_ended(why, ends, line.remote);
      kill(pid, SIGKILL);
      ends.ended_from_outside(clock.now());
    }
    const bool waits = !awaited && !killed && requests.interrupted_by() == 0 && !dead.starting();
    if (const std::string who = waits ? ends.job().awaited(clock.now()) : ""; !who.empty()) {
      awaited = true;
      std::fprintf(stderr,
                   "penstock: the other ranks wait for %s, which does not come up\n  help: can '%s' be run there%s?\n",
                   without_controls(who).c_str(), line.penstock.c_str(),
                   line.remote ? (", and does it reach this host at " + ends.address()).c_str() : "");
    }
    requests.look_at_mpirun();
    std::vector<pollfd> readable{{signals.fd(), POLLIN, 0}, {hang_up ? hang_up->fd() : -1, POLLIN, 0}};
    ends.collect_fds(readable);
    const bool ends_soon =
        requests.interrupted_by() != 0 || ends.job().lost_rank_0() || !ends.job().late(clock.now()).empty();
    poll(readable.data(), readable.size(), ends_soon ? 200 : 1000);
    ends.read(clock.now());
    while (const auto arrived = hang_up ? hang_up->next() : std::nullopt) {
      requests.ask(*arrived);
    }
    while (const auto arrived = signals.next()) {
      if (*arrived == SIGCHLD) continue;
      if (*arrived == SIGUSR1 || *arrived == SIGUSR2) {
        kill(pid, *arrived);
      } else {
        requests.ask(*arrived);
      }
    }
  }
  const Nanoseconds mpirun_ended_at = clock.now();
  int interrupted_by = requests.interrupted_by();
  // What ended mpirun may have come to us too, and be unread: the signal is the reason then.
  if (const auto arrived = hang_up ? hang_up->next() : std::nullopt) interrupted_by = *arrived;
  while (const auto arrived = signals.next()) {
    const bool asks = *arrived == SIGINT || (*arrived == SIGTERM && !line.end_in_order);
    if (asks) interrupted_by = *arrived;
  }
  // mpirun leaves once its ranks are killed; their helpers may still be giving the programs their grace.
  folder.wait_until_alone(line.grace_s + kHelpersEnd_s);
  keeper.reset();
  constexpr double kEndOrphans_s = 5;
  end_descendants(kEndOrphans_s);
  folder.release();
  // After an interruption neither the exit code nor the last line depends on what the ranks say.
  ends.read_last_words(clock, interrupted_by == 0 ? mpirun_ended_at + kLateWords : mpirun_ended_at);
  constexpr double kCleanHosts_s = 5;
  if (line.remote && !line.agent.empty() && !line.session_folder.empty() && !ends.job().any_running()) {
    const std::string own_name = own_name_among(line.rank_hosts);
    std::vector<std::string> others;
    for (const std::string& host : line.rank_hosts) {
      if (!is_local(host) && host != own_name) others.push_back(host);
    }
    clean_hosts(others, line.session_folder, line.agent, kCleanHosts_s);
  }
  const bool written = std::fputs(ends.report().c_str(), stdout) >= 0 && std::fflush(stdout) == 0;
  // Whoever read may have left; a disk that is full is an error (main.cpp).
  if (!written && errno == EPIPE) std::clearerr(stdout);
  const JobOutcome& job = ends.job();
  const LaunchEnd end{
      status, killed, interrupted_by, host_name(), count_oom_kills() - oom_kills_before, memory_limit_here()};
  if (const std::string last = closing_line(end, job); !last.empty()) {
    std::fprintf(stderr, "penstock: %s\n", without_controls(last).c_str());
  }
  return launch_exit_code(status, job, interrupted_by);
}

}  // namespace penstock
