// The helper against real processes: small shell programs that start, trap, fork off daemons, and must all be gone.
//
// This process becomes a subreaper with its first helper, so whatever a test leaves running ends up below it:
// nothing_left() looks there.
#include "runtime/process/helper.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <thread>

#include "runtime/base/error.h"
#include "runtime/process/environment.h"
#include "runtime/process/tree.h"
#include "tests/support/session_folder.h"

using namespace penstock;
using Kind = HelperReport::Kind;
using Steady = std::chrono::steady_clock;

namespace {

// A folder for what programs write, removed with the test.
struct Scratch {
  std::string path;
  Scratch() {
    char name[] = "/tmp/process_helper_test.XXXXXX";
    path = mkdtemp(name);
  }
  ~Scratch() { std::filesystem::remove_all(path); }
  std::string file(const std::string& name) const { return path + "/" + name; }
  std::string read(const std::string& name) const {
    std::ifstream in(file(name));
    return {std::istreambuf_iterator<char>(in), {}};
  }
};

bool soon(const std::function<bool()>& condition, double limit_s = 20) {
  const auto limit = Steady::now() + std::chrono::duration<double>(limit_s);
  while (!condition()) {
    if (Steady::now() > limit) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

double seconds_since(Steady::time_point start) {
  return std::chrono::duration<double>(Steady::now() - start).count();
}

ProgramSpec shell(const std::string& script, const Scratch& scratch) {
  ProgramSpec spec;
  spec.argv = {"sh", "-c", script};
  spec.environment = inherited_environment();
  spec.environment.push_back("OUT=" + scratch.path);
  return spec;
}

HelperReport expect(Helper& helper, Kind kind, double limit_s = 30) {
  const auto report = helper.wait_report(limit_s);
  REQUIRE(report.has_value());
  REQUIRE(static_cast<int>(report->kind) == static_cast<int>(kind));
  return *report;
}

bool gone(pid_t pid) {
  return kill(pid, 0) != 0;
}

// Longer than any grace here: SIGTERM may just miss a process that its parent is forking, and then the grace runs out.
bool nothing_left() {
  return soon(
      [] {
        while (waitpid(-1, nullptr, WNOHANG) > 0) {
        }
        return descendants(getpid()).empty();
      },
      30);
}

// A program with a worker and a daemon (double fork, session of its own), all deaf to SIGTERM; the pids are in files.
constexpr const char* kStubbornTree = R"(
  trap '' TERM
  sh -c 'trap "" TERM; echo $$ > $OUT/worker; while :; do sleep 0.05; done' &
  (setsid sh -c 'trap "" TERM; echo $$ > $OUT/daemon; while :; do sleep 0.05; done' &) &
  wait_for() { while [ ! -s $OUT/$1 ]; do sleep 0.01; done; }
  wait_for worker; wait_for daemon; echo $$ > $OUT/tmp; mv $OUT/tmp $OUT/program
  while :; do sleep 0.05; done)";

pid_t pid_in(const Scratch& scratch, const std::string& name) {
  return std::stoi(scratch.read(name));
}

bool tree_is_up(const Scratch& scratch) {
  return soon([&] { return !scratch.read("program").empty(); });
}

}  // namespace

TEST_CASE("a program runs, with its variables and cores, and its status comes back") {
  Scratch scratch;
  Helper helper = Helper::fork_now();
  ProgramSpec spec = shell(
      "echo $RANK > $OUT/rank; grep Cpus_allowed_list /proc/self/status > $OUT/cpus;"
      "cat > $OUT/stdin; ps -o sid= -p $$ > $OUT/sid; exit 3",
      scratch);
  spec.environment.push_back("RANK=7");
  cpu_set_t allowed;
  REQUIRE(sched_getaffinity(0, sizeof allowed, &allowed) == 0);
  int cpu = 0;
  while (!CPU_ISSET(cpu, &allowed)) ++cpu;
  spec.cpus = {cpu};
  helper.start(spec);
  const auto started = expect(helper, Kind::started);
  const auto exited = expect(helper, Kind::exited);
  CHECK(exited.pid == started.pid);
  CHECK(describe_status(exited.status) == "exited with status 3");
  CHECK(scratch.read("rank") == "7\n");
  CHECK(scratch.read("cpus") == "Cpus_allowed_list:\t" + std::to_string(cpu) + "\n");
  CHECK(std::filesystem::exists(scratch.file("stdin")));
  CHECK(scratch.read("stdin").empty());  // /dev/null
  if (!scratch.read("sid").empty()) CHECK(std::stoi(scratch.read("sid")) == started.pid);
  // The helper takes another program.
  helper.start(shell("kill -SEGV $$", scratch));
  expect(helper, Kind::started);
  CHECK(describe_status(expect(helper, Kind::exited).status) == "was killed by SIGSEGV");
  helper.stop(1);
  CHECK(expect(helper, Kind::ended).clean);
  CHECK(helper.poll_fd() == -1);
  CHECK_FALSE(helper.next_report());
  CHECK(nothing_left());
}

TEST_CASE("what cannot be started is reported in words") {
  Scratch scratch;
  Helper helper = Helper::fork_now();
  ProgramSpec spec = shell("true", scratch);
  spec.argv = {"pyhton", "train.py"};
  helper.start(spec);
  CHECK(expect(helper, Kind::start_failed).text == "cannot start 'pyhton': No such file or directory");
  spec = shell("true", scratch);
  spec.cpus = {4000};
  helper.start(spec);
  CHECK(expect(helper, Kind::start_failed).text.rfind("cannot run on cores 4000: ", 0) == 0);
  CHECK_THROWS_AS(helper.start(ProgramSpec{}), Error);
  helper.start(shell("sleep 30", scratch));
  expect(helper, Kind::started);
  helper.start(shell("true", scratch));
  CHECK(expect(helper, Kind::start_failed).text == "a program is running already");
  helper.stop(5);
  expect(helper, Kind::exited);
  expect(helper, Kind::ended);
  CHECK(nothing_left());
}

TEST_CASE("an environment larger than a socket packet arrives whole") {
  Scratch scratch;
  Helper helper = Helper::fork_now();
  ProgramSpec spec = shell("env | grep ^BIG | wc -c > $OUT/size", scratch);
  for (int i = 0; i < 10; ++i) spec.environment.push_back("BIG" + std::to_string(i) + "=" + std::string(60000, 'x'));
  helper.start(spec);
  expect(helper, Kind::started);
  CHECK(describe_status(expect(helper, Kind::exited).status) == "exited with status 0");
  CHECK(std::stoi(scratch.read("size")) == 10 * 60006);
}

TEST_CASE("the program inherits none of our descriptors, and no blocked signals") {
  Scratch scratch;
  const int secret = open("/dev/null", O_RDONLY);  // not even close-on-exec
  Helper helper = Helper::fork_now();
  const int late = open("/dev/null", O_RDONLY);
  helper.start(shell("grep SigBlk /proc/self/status > $OUT/mask; exec ls /proc/self/fd > $OUT/fds", scratch));
  expect(helper, Kind::started);
  expect(helper, Kind::exited);
  close(secret);
  close(late);
  CHECK(scratch.read("fds") == "0\n1\n2\n3\n");  // 3 is the folder ls reads
  CHECK(scratch.read("mask") == "SigBlk:\t0000000000000000\n");
}

TEST_CASE("only a program that keeps it reads our stdin") {
  Scratch scratch;
  const int saved = dup(STDIN_FILENO);
  std::array<int, 2> input{};
  REQUIRE(pipe2(input.data(), O_CLOEXEC) == 0);
  REQUIRE(dup2(input[0], STDIN_FILENO) == STDIN_FILENO);
  close(input[0]);
  Helper helper = Helper::fork_now();
  REQUIRE(write(input[1], "hello\n", 6) == 6);
  close(input[1]);
  ProgramSpec spec = shell("cat > $OUT/stdin", scratch);
  spec.keep_stdin = true;
  helper.start(spec);
  expect(helper, Kind::started);
  expect(helper, Kind::exited);
  dup2(saved, STDIN_FILENO);
  close(saved);
  CHECK(scratch.read("stdin") == "hello\n");
}

TEST_CASE("SIGUSR1 goes to the program alone, SIGTERM to its tree") {
  Scratch scratch;
  Helper helper = Helper::fork_now();
  helper.start(shell(R"(
    sh -c 'trap "echo usr1 >> $OUT/child" USR1; trap "echo term >> $OUT/child; exit 0" TERM
           echo up > $OUT/child_up; while :; do sleep 0.02; done' &
    trap 'echo usr1 >> $OUT/program' USR1
    trap 'wait; exit 9' TERM
    while [ ! -s $OUT/child_up ]; do sleep 0.01; done; echo up > $OUT/up
    while :; do sleep 0.02; done)",
                     scratch));
  expect(helper, Kind::started);
  REQUIRE(soon([&] { return !scratch.read("up").empty(); }));
  helper.signal(SIGUSR1);
  CHECK(soon([&] { return scratch.read("program") == "usr1\n"; }));
  CHECK(scratch.read("child").empty());
  helper.signal(SIGTERM);
  CHECK(describe_status(expect(helper, Kind::exited).status) == "exited with status 9");
  CHECK(scratch.read("child") == "term\n");
  helper.stop(1);
  CHECK(expect(helper, Kind::ended).clean);
}

TEST_CASE("the grace is enough to write a checkpoint, and not longer than needed") {
  Scratch scratch;
  Helper helper = Helper::fork_now();
  helper.start(
      shell("trap 'sleep 0.5; echo saved > $OUT/checkpoint; exit 0' TERM; echo up > $OUT/up;"
            "while :; do sleep 0.02; done",
            scratch));
  expect(helper, Kind::started);
  REQUIRE(soon([&] { return !scratch.read("up").empty(); }));
  const auto start = Steady::now();
  helper.stop(20);
  CHECK(describe_status(expect(helper, Kind::exited).status) == "exited with status 0");
  CHECK(expect(helper, Kind::ended).clean);
  CHECK(scratch.read("checkpoint") == "saved\n");
  CHECK(seconds_since(start) < 15);
  CHECK(nothing_left());
}

TEST_CASE("after the grace the whole tree is killed, a daemon too") {
  Scratch scratch;
  Helper helper = Helper::fork_now();
  helper.start(shell(kStubbornTree, scratch));
  expect(helper, Kind::started);
  REQUIRE(tree_is_up(scratch));
  const auto start = Steady::now();
  helper.stop(0.5);
  CHECK(describe_status(expect(helper, Kind::exited).status) == "was killed by SIGKILL");
  CHECK(expect(helper, Kind::ended).clean);
  CHECK(seconds_since(start) >= 0.5);
  for (const char* name : {"program", "worker", "daemon"}) CHECK(gone(pid_in(scratch, name)));
  CHECK(nothing_left());
}

TEST_CASE("a second stop shortens the grace, never lengthens it") {
  Scratch scratch;
  Helper helper = Helper::fork_now();
  helper.start(shell(kStubbornTree, scratch));
  expect(helper, Kind::started);
  REQUIRE(tree_is_up(scratch));
  const auto start = Steady::now();
  helper.stop(60);
  helper.stop(0.2);
  helper.stop(60);
  expect(helper, Kind::exited);
  CHECK(expect(helper, Kind::ended).clean);
  CHECK(seconds_since(start) < 30);
  CHECK(nothing_left());
}

TEST_CASE("a daemon outlives its program only until the end of the job") {
  Scratch scratch;
  Helper helper = Helper::fork_now();
  helper.start(
      shell("(setsid sh -c 'echo $$ > $OUT/tmp; mv $OUT/tmp $OUT/daemon; sleep 60' &) &"
            "while [ ! -s $OUT/daemon ]; do sleep 0.01; done; exit 0",
            scratch));
  expect(helper, Kind::started);
  expect(helper, Kind::exited);
  const pid_t daemon = pid_in(scratch, "daemon");
  CHECK_FALSE(gone(daemon));
  helper.stop(5);
  CHECK(expect(helper, Kind::ended).clean);
  CHECK(gone(daemon));
}

TEST_CASE("a rank killed with SIGKILL leaves nothing after the grace, and the folder goes too") {
  Scratch scratch;
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  const std::string folder = make_session_folder();
  std::ofstream(folder + "/vader_segment.host.0") << "x";
  const pid_t rank = fork();
  if (rank == 0) {
    Helper helper = Helper::fork_now(Helper::Options{folder});
    ProgramSpec spec = shell(kStubbornTree, scratch);
    spec.grace_s = 0.5;
    helper.start(spec);
    for (;;) pause();
  }
  REQUIRE(tree_is_up(scratch));
  CHECK(std::filesystem::exists(folder));
  const auto start = Steady::now();
  kill(rank, SIGKILL);
  CHECK(nothing_left());
  CHECK(seconds_since(start) >= 0.5);
  for (const char* name : {"program", "worker", "daemon"}) CHECK(gone(pid_in(scratch, name)));
  CHECK_FALSE(std::filesystem::exists(folder));
}

TEST_CASE("a program gets its grace when the rank is killed right after SIGTERM, as mpirun does") {
  Scratch scratch;
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  const pid_t rank = fork();
  if (rank == 0) {
    setpgid(0, 0);
    signal(SIGTERM, SIG_DFL);  // doctest's handler would report this test case as crashed, before SIGKILL comes
    Helper helper = Helper::fork_now();
    helper.start(
        shell("trap 'sleep 0.6; echo saved > $OUT/checkpoint; exit 0' TERM; echo up > $OUT/up;"
              "while :; do sleep 0.02; done",
              scratch));
    for (;;) pause();
  }
  REQUIRE(soon([&] { return !scratch.read("up").empty(); }));
  kill(-rank, SIGTERM);
  kill(-rank, SIGKILL);
  CHECK(soon([&] { return scratch.read("checkpoint") == "saved\n"; }));
  CHECK(nothing_left());
}

TEST_CASE("a helper killed with SIGKILL costs the programs of other helpers nothing") {
  const Scratch scratch;
  Helper killed = Helper::fork_now(Helper::Options{});
  Helper other = Helper::fork_now(Helper::Options{});
  killed.start(shell("(setsid sleep 100 &) ; while :; do sleep 0.01; done", scratch));
  other.start(
      shell("trap 'echo saved > $OUT/saved; exit 0' TERM; echo up > $OUT/up; while :; do sleep 0.01; done", scratch));
  const pid_t program = expect(killed, Kind::started).pid;
  expect(other, Kind::started);
  REQUIRE(soon([&] { return scratch.read("up") == "up\n"; }));
  kill(killed.pid(), SIGKILL);
  CHECK_FALSE(expect(killed, Kind::ended).clean);
  CHECK(gone(program));
  other.stop(5);
  CHECK(describe_status(expect(other, Kind::exited).status) == "exited with status 0");
  CHECK(scratch.read("saved") == "saved\n");
  CHECK(expect(other, Kind::ended).clean);
  CHECK(nothing_left());
}

TEST_CASE("a helper that ends with words unread was not killed") {
  for (int i = 0; i < 20; ++i) {
    Helper helper = Helper::fork_now(Helper::Options{});
    for (int stop = 0; stop < 3; ++stop) helper.stop(1);
    const HelperReport ended = expect(helper, Kind::ended);
    CHECK(ended.text == "");
    CHECK(ended.clean);
  }
  CHECK(nothing_left());
}

TEST_CASE("a helper answers, one answer a question, and not while it is stopped") {
  const Scratch scratch;
  Helper helper = Helper::fork_now(Helper::Options{});
  helper.start(shell("sleep 60", scratch));
  expect(helper, Kind::started);
  for (int i = 0; i < 3; ++i) {
    CHECK(helper.ask());
    CHECK_FALSE(helper.ask());
    expect(helper, Kind::here);
    CHECK_FALSE(helper.wait_report(0.05));
  }
  kill(helper.pid(), SIGSTOP);
  // More than a socket takes, were each of them sent.
  for (int i = 0; i < 10'000; ++i) CHECK(helper.ask() == (i == 0));
  CHECK_FALSE(helper.wait_report(0.1));
  helper.resume();
  expect(helper, Kind::here);
  helper.stop(5);
  expect(helper, Kind::exited);
  CHECK(expect(helper, Kind::ended).clean);
}

TEST_CASE("a stopped helper ends its program all the same: told to, hung up on, killed, or without its rank") {
  constexpr const char* kSaves =
      "trap 'echo saved > $OUT/saved; exit 0' TERM; echo up > $OUT/up; while :; do sleep 0.01; done";
  for (const std::string how : {"stop", "hang up", "kill", "rank"}) {
    CAPTURE(how);
    const Scratch scratch;
    if (how == "rank") {
      prctl(PR_SET_CHILD_SUBREAPER, 1);
      const pid_t rank = fork();
      if (rank == 0) {
        Helper helper = Helper::fork_now(Helper::Options{});
        helper.start(shell(kSaves, scratch));
        while (scratch.read("up").empty()) usleep(1000);
        ::kill(helper.pid(), SIGSTOP);
        std::ofstream(scratch.file("stopped")) << "x";
        for (;;) pause();
      }
      REQUIRE(soon([&] { return !scratch.read("stopped").empty(); }));
      kill(rank, SIGKILL);
    } else {
      Helper helper = Helper::fork_now(Helper::Options{});
      helper.start(shell(kSaves, scratch));
      expect(helper, Kind::started);
      REQUIRE(soon([&] { return !scratch.read("up").empty(); }));
      kill(helper.pid(), SIGSTOP);
      if (how == "stop") {
        helper.stop(5);
        CHECK(describe_status(expect(helper, Kind::exited).status) == "exited with status 0");
        CHECK(expect(helper, Kind::ended).clean);
      } else if (how == "kill") {
        helper.kill();
        CHECK_FALSE(expect(helper, Kind::ended).clean);
      }
    }
    // A program whose helper is killed dies with it.
    if (how != "kill") CHECK(soon([&] { return scratch.read("saved") == "saved\n"; }));
    CHECK(nothing_left());
  }
}

TEST_CASE("a helper killed with SIGKILL is reported, and its tree ended by the rank") {
  Scratch scratch;
  Helper helper = Helper::fork_now();
  helper.start(shell(kStubbornTree, scratch));
  expect(helper, Kind::started);
  REQUIRE(tree_is_up(scratch));
  kill(helper.pid(), SIGKILL);
  const auto ended = expect(helper, Kind::ended);
  CHECK_FALSE(ended.clean);
  CHECK(ended.text.find("was killed") != std::string::npos);
  for (const char* name : {"program", "worker", "daemon"}) CHECK(gone(pid_in(scratch, name)));
  CHECK_THROWS_AS(helper.start(shell("true", scratch)), Error);
  helper.signal(SIGTERM);
  helper.stop(1);
  CHECK(nothing_left());
}

TEST_CASE("a Helper that is destroyed ends its program") {
  Scratch scratch;
  {
    Helper helper = Helper::fork_now();
    ProgramSpec spec = shell("sleep 60", scratch);
    spec.grace_s = 2;
    helper.start(spec);
    expect(helper, Kind::started);
  }
  CHECK(nothing_left());
}

// A helper whose standard output is a pipe, as under mpirun; `reader` is the other end, the caller's to close.
Helper fork_with_piped_output(int& reader) {
  const int saved = dup(STDOUT_FILENO);
  std::array<int, 2> ends{};
  REQUIRE(pipe2(ends.data(), O_CLOEXEC) == 0);
  std::fflush(stdout);
  REQUIRE(dup2(ends[1], STDOUT_FILENO) == STDOUT_FILENO);
  close(ends[1]);
  reader = ends[0];
  Helper helper = Helper::fork_now();
  dup2(saved, STDOUT_FILENO);
  close(saved);
  return helper;
}

TEST_CASE("relayed output arrives whole, and outlives its reader") {
  Scratch scratch;
  int reader = -1;
  Helper helper = fork_with_piped_output(reader);
  // More than a pipe holds, so the helper must wait for the reader without losing its other work.
  ProgramSpec spec = shell(
      "i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done; echo up > $OUT/up;"
      "trap 'echo one more; sleep 0.2; echo and one; echo saved > $OUT/saved; exit 0' TERM;"
      "while :; do sleep 0.02; done",
      scratch);
  spec.relay_output = true;
  helper.start(spec);
  expect(helper, Kind::started);
  std::string text;
  std::string expected;
  for (int i = 0; i < 20000; ++i) expected += "line " + std::to_string(i) + "\n";
  std::array<char, 4096> buffer;
  while (text.size() < expected.size()) {
    const ssize_t got = read(reader, buffer.data(), buffer.size());
    REQUIRE(got > 0);
    text.append(buffer.data(), static_cast<size_t>(got));
  }
  CHECK(text == expected);
  REQUIRE(soon([&] { return !scratch.read("up").empty(); }));
  close(reader);  // as mpirun does when it is killed
  helper.stop(10);
  CHECK(describe_status(expect(helper, Kind::exited).status) == "exited with status 0");
  CHECK(expect(helper, Kind::ended).clean);
  CHECK(scratch.read("saved") == "saved\n");
}

TEST_CASE("the last words of a program arrive where their reader is behind") {
  Scratch scratch;
  int reader = -1;
  Helper helper = fork_with_piped_output(reader);
  // Fills the pipe to the reader, and half of its own: then it has ended, and the helper holds the rest.
  constexpr size_t kBytes = 100'000;
  ProgramSpec spec = shell("head -c " + std::to_string(kBytes) + " /dev/zero", scratch);
  spec.relay_output = true;
  helper.start(spec);
  expect(helper, Kind::started);
  CHECK(describe_status(expect(helper, Kind::exited).status) == "exited with status 0");
  helper.stop(0);
  usleep(100'000);
  size_t arrived = 0;
  std::array<char, 4096> buffer;
  for (ssize_t got = 0; (got = read(reader, buffer.data(), buffer.size())) > 0;) arrived += static_cast<size_t>(got);
  CHECK(arrived == kBytes);
  CHECK(expect(helper, Kind::ended).clean);
  close(reader);
}

TEST_CASE("when the launcher dies, a rank that does not notice is ended, after the program") {
  Scratch scratch;
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  const pid_t launcher = fork();
  if (launcher == 0) {
    if (fork() == 0) {
      Helper helper = Helper::fork_now(Helper::Options{"", getppid()});
      signal(SIGTERM, SIG_IGN);
      ProgramSpec spec = shell(
          "trap 'sleep 0.3; echo saved > $OUT/saved; exit 0' TERM; echo up > $OUT/up;"
          "while :; do sleep 0.02; done",
          scratch);
      spec.grace_s = 3;
      helper.start(spec);
      for (;;) pause();
    }
    for (;;) pause();
  }
  REQUIRE(soon([&] { return !scratch.read("up").empty(); }));
  kill(launcher, SIGKILL);
  CHECK(nothing_left());
  CHECK(scratch.read("saved") == "saved\n");
}

TEST_CASE("when the launcher dies, a rank that is stopped is continued, and ends by itself") {
  Scratch scratch;
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  const pid_t launcher = fork();
  if (launcher == 0) {
    if (fork() == 0) {
      const Helper helper = Helper::fork_now(Helper::Options{"", getppid()});
      signal(SIGTERM, SIG_IGN);
      std::ofstream(scratch.file("rank")) << getpid();
      raise(SIGSTOP);
      std::ofstream(scratch.file("ended")) << "by itself";
      _exit(0);
    }
    for (;;) pause();
  }
  REQUIRE(soon([&] {
    const std::string rank = scratch.read("rank");
    std::ifstream file("/proc/" + rank + "/stat");
    std::string stat;
    std::getline(file, stat);
    return !rank.empty() && stat.find(") T ") != std::string::npos;
  }));
  kill(launcher, SIGKILL);
  CHECK(nothing_left());
  CHECK(scratch.read("ended") == "by itself");
}
