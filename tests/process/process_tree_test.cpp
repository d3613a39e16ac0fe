#include "runtime/process/tree.h"
#include "tests/support/session_folder.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>

using namespace penstock;

TEST_CASE("descendants finds children and grandchildren, and end_descendants leaves none") {
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  std::array<int, 2> ready{};
  REQUIRE(pipe2(ready.data(), O_CLOEXEC) == 0);
  const pid_t child = fork();
  if (child == 0) {
    if (fork() == 0) {
      setsid();
      if (fork() != 0) _exit(0);  // a daemon: its parent ends, it lives on in a session of its own
    } else {
      (void)!write(ready[1], "c", 1);
    }
    (void)!write(ready[1], "d", 1);
    for (;;) pause();
  }
  char byte = 0;
  for (int i = 0; i < 3; ++i) REQUIRE(read(ready[0], &byte, 1) == 1);
  const auto found = descendants(getpid());
  CHECK(found.size() >= 2);  // the child and the daemon; the one between may still be a zombie
  CHECK(std::find(found.begin(), found.end(), child) != found.end());
  CHECK(end_descendants(20));
  CHECK(descendants(getpid()).empty());
  close(ready[0]);
  close(ready[1]);
}

TEST_CASE("a status in words") {
  const auto status_of = [](auto body) {
    const pid_t pid = fork();
    if (pid == 0) {
      body();
      _exit(0);
    }
    int status = 0;
    REQUIRE(waitpid(pid, &status, 0) == pid);
    return status;
  };
  CHECK(describe_status(status_of([] { _exit(3); })) == "exited with status 3");
  CHECK(describe_status(status_of([] { raise(SIGKILL); })) == "was killed by SIGKILL");
  CHECK(shell_code(status_of([] { _exit(3); })) == 3);
  CHECK(shell_code(status_of([] { raise(SIGKILL); })) == 137);
  CHECK(signal_name(SIGSEGV) == "SIGSEGV");
  CHECK(signal_name(63) == "signal 63");
}

TEST_CASE("the status of a process can be read as soon as its descriptors hang up, until somebody collects it") {
  for (const int number : {SIGKILL, SIGUSR1, 0}) {
    std::array<int, 2> held{};
    REQUIRE(pipe2(held.data(), O_CLOEXEC) == 0);
    const pid_t pid = fork();
    if (pid == 0) {
      close(held[0]);
      if (number != 0) {
        for (;;) pause();
      }
      _exit(3);
    }
    close(held[1]);
    if (number != 0) {
      CHECK_FALSE(status_left_by(pid));
      kill(pid, number);
    }
    char byte = 0;
    CHECK(read(held[0], &byte, 1) == 0);
    const std::optional<int> status = status_left_by(pid);
    REQUIRE(status);
    CHECK(describe_status(*status) == (number != 0 ? "was killed by " + signal_name(number) : "exited with status 3"));
    close(held[0]);
    REQUIRE(waitpid(pid, nullptr, 0) == pid);
    CHECK_FALSE(status_left_by(pid));
  }
}

TEST_CASE("a session folder goes with its last holder") {
  const std::string path = make_session_folder();
  struct stat info {};
  REQUIRE(stat(path.c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0700);
  std::filesystem::create_directories(path + "/ompi.host.0/pid.1");
  std::ofstream(path + "/ompi.host.0/pid.1/contact.txt") << "x";
  SessionFolder first(path);
  SessionFolder second(path);
  REQUIRE(first.held());
  REQUIRE(second.held());
  CHECK_FALSE(first.release());
  CHECK(std::filesystem::exists(path));
  CHECK(second.release());
  CHECK_FALSE(std::filesystem::exists(path));
}

TEST_CASE("a launcher that is killed has a keeper that removes the folder, after all others have let go") {
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  const auto gone = [](const std::string& path) {
    for (int i = 0; i < 2000 && std::filesystem::exists(path); ++i) usleep(10'000);
    return !std::filesystem::exists(path);
  };
  for (const bool helper : {false, true}) {
    const std::string path = new_session_folder_name();
    std::array<int, 2> ready{};
    REQUIRE(pipe2(ready.data(), O_CLOEXEC) == 0);
    const pid_t launcher = fork();
    if (launcher == 0) {
      const FolderKeeper keeper(path, 10);
      if (mkdir(path.c_str(), 0700) != 0) _exit(1);
      std::ofstream(path + "/of_mpirun") << "x";
      const SessionFolder folder(path);
      (void)!write(ready[1], "r", 1);
      for (;;) pause();
    }
    char byte = 0;
    REQUIRE(read(ready[0], &byte, 1) == 1);
    SessionFolder held(helper ? path : "");
    kill(launcher, SIGKILL);
    waitpid(launcher, nullptr, 0);
    if (helper) {
      usleep(400'000);
      CHECK(std::filesystem::exists(path));
      held.release();
    }
    CHECK(gone(path));
    if (!helper) {  // as a rank does that was just starting when mpirun died, on a machine that has little time for it
      const pid_t rank = fork();
      if (rank == 0) {
        setenv("FOLDER", path.c_str(), 1);
        execlp("sh", "sh", "-c", R"(sleep 3.5; mkdir -m 700 "$FOLDER"; echo x >"$FOLDER/of_a_rank"; exit 7)", nullptr);
        _exit(1);
      }
      int status = 0;
      REQUIRE(waitpid(rank, &status, 0) == rank);
      CHECK(WEXITSTATUS(status) == 7);
      CHECK(gone(path));
    }
    CHECK(end_descendants(30));
    close(ready[0]);
    close(ready[1]);
  }
}

TEST_CASE("a keeper that is dismissed touches nothing, and is not waited for where it is stopped") {
  const std::string path = make_session_folder();
  FolderKeeper keeper(path, 10);
  for (const pid_t pid : descendants(getpid())) kill(pid, SIGSTOP);
  keeper.dismiss();
  CHECK(descendants(getpid()).empty());
  CHECK(std::filesystem::exists(path));
  SessionFolder last(path);
  CHECK(last.release());
}

TEST_CASE("folders that are not a session's are never touched") {
  const std::string base = make_session_folder();
  SessionFolder guard(base);
  const auto untouched = [&](const std::string& path) {
    {
      SessionFolder held(path);
      CHECK_FALSE(held.held());
    }
    return std::filesystem::exists(std::filesystem::symlink_status(path));
  };
  std::filesystem::create_directory(base + "/mine");
  chmod((base + "/mine").c_str(), 0700);
  CHECK(untouched(base + "/mine"));  // not our name
  std::filesystem::create_directory(base + "/penstock-open");
  chmod((base + "/penstock-open").c_str(), 0755);
  CHECK(untouched(base + "/penstock-open"));  // open to others
  std::filesystem::create_directory_symlink(base + "/mine", base + "/penstock-link");
  CHECK(untouched(base + "/penstock-link"));
  CHECK_FALSE(SessionFolder(base + "/penstock-missing").held());
  CHECK_FALSE(SessionFolder("").held());
}

TEST_CASE("the environment of children that are alive, one that they began with") {
  std::array<int, 2> begun{};  // closed by exec
  REQUIRE(pipe2(begun.data(), O_CLOEXEC) == 0);
  const pid_t child = fork();
  if (child == 0) {
    std::array<const char*, 3> environment{"FIRST=1", "PLACE=7", nullptr};
    execle("/bin/sleep", "sleep", "60", nullptr, environment.data());
    _exit(127);
  }
  close(begun[1]);
  char byte = 0;
  CHECK(read(begun[0], &byte, 1) == 0);
  close(begun[0]);
  CHECK(environment_of_children(getpid(), "PLACE") == std::vector<std::string>{"7"});
  CHECK(environment_of_children(getpid(), "LACE").empty());
  CHECK(environment_of_children(child, "PLACE").empty());
  kill(child, SIGKILL);
  siginfo_t state{};
  REQUIRE(waitid(P_PID, static_cast<id_t>(child), &state, WEXITED | WNOWAIT) == 0);
  CHECK(environment_of_children(getpid(), "PLACE").empty());  // a zombie
  waitpid(child, nullptr, 0);
}

TEST_CASE("who may be about to start a child is not asleep, or has a child on the way to its program") {
  std::array<int, 2> to_parent{};
  std::array<int, 2> to_child{};
  REQUIRE(pipe2(to_parent.data(), O_CLOEXEC) == 0);
  REQUIRE(pipe2(to_child.data(), O_CLOEXEC) == 0);
  const pid_t parent = fork();
  if (parent == 0) {
    // Each byte is a step; it sleeps in read() between them.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(to_parent[1]);
    char step = 0;
    while (read(to_parent[0], &step, 1) == 1) {
      if (step == 'f' && fork() == 0) {
        if (read(to_child[0], &step, 1) == 1) execl("/bin/sleep", "sleep", "60", nullptr);
        _exit(127);
      }
      while (step == 'b') {
      }
    }
    _exit(0);
  }
  const auto comes_to = [&](bool expected) {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (may_start_children(parent) != expected && std::chrono::steady_clock::now() < limit) usleep(1000);
    return may_start_children(parent) == expected;
  };
  const auto write_one = [](int fd, char byte) { return write(fd, &byte, 1) == 1; };
  CHECK(comes_to(false));  // no child
  REQUIRE(write_one(to_parent[1], 'f'));
  CHECK(comes_to(true));  // a child that has not come to its program
  REQUIRE(write_one(to_child[1], 'x'));
  CHECK(comes_to(false));
  REQUIRE(write_one(to_parent[1], 'b'));
  CHECK(comes_to(true));  // it is busy
  CHECK(end_descendants(20));
  for (const int fd : {to_parent[0], to_parent[1], to_child[0], to_child[1]}) close(fd);
}
