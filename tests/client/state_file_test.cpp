// Files of states: whole or not there after a crash at any system call, refused when damaged.
#include "runtime/client/state_file.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

#include "runtime/base/error.h"
#include "tests/support/sanitized.h"
#include "tests/support/temporary_folder.h"

namespace penstock {
namespace {

const std::string kOld = R"({"train":{"epoch":1,"batch":7}})";
const std::string kNew = R"({"train":{"epoch":2,"batch":0},"val":{"epoch":9,"batch":3}})";

// Part files that nobody removed would be counted, too.
size_t folder_size(const TemporaryFolder& folder) {
  const std::filesystem::directory_iterator entries(folder.path());
  return static_cast<size_t>(std::distance(begin(entries), end(entries)));
}

// A state that takes so long to write that writers and readers meet.
std::string large_state(int writer, int epoch) {
  return R"({"train":{"epoch":)" + std::to_string(epoch) + R"(,"batch":)" + std::to_string(writer) + R"(},"rest":")" +
         std::string(300'000, static_cast<char>('a' + writer)) + R"("})";
}

// A process that saves `saves` states one after the other; it ends with 0 where all of them could be saved.
pid_t save_many(const std::string& path, int writer, int saves) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  try {
    for (int epoch = 1; epoch <= saves; ++epoch) save_state(path, large_state(writer, epoch));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "writer %d: %s\n", writer, error.what());
    ::_exit(1);
  }
  ::_exit(0);
}

std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST_CASE("what was saved is loaded, and replaces what was there") {
  const TemporaryFolder folder;
  const std::string path = folder.path("data.state");
  for (const std::string& json : {kOld, kNew, std::string("{}")}) {
    save_state(path, json);
    CHECK(load_state(path) == json);
  }
  CHECK(read(path).rfind("penstock state 1\n", 0) == 0);
  CHECK_THROWS_WITH_AS(save_state(path, "[1]"), doctest::Contains("not a JSON object"), Error);
  CHECK_THROWS_AS(save_state(folder.path("no/such/folder.state"), kOld), Error);
  CHECK_THROWS_AS((void)load_state(folder.path("not_there.state")), Error);
}

TEST_CASE("a link stays and what it leads to is replaced; what is no file is refused, by the name that was given") {
  const TemporaryFolder folder;
  const std::string path = folder.path("data.state");
  const auto refusal = [&](const std::string& named) {
    try {
      save_state(named, kNew);
      return std::string("no error");
    } catch (const Error& error) {
      CHECK_FALSE(error.remedy().empty());
      CHECK(error.message().find(".part") == std::string::npos);
      return error.message();
    }
  };
  // Through two links, the second of which is relative and leads to nothing yet.
  REQUIRE(::symlink("data.state", folder.path("second").c_str()) == 0);
  REQUIRE(::symlink(folder.path("second").c_str(), folder.path("first").c_str()) == 0);
  for (const std::string& json : {kOld, kNew}) {
    save_state(folder.path("first"), json);
    CHECK(load_state(path) == json);
  }
  struct stat status {};
  for (const char* name : {"first", "second"}) {
    REQUIRE(::lstat(folder.path(name).c_str(), &status) == 0);
    CHECK(S_ISLNK(status.st_mode));
  }
  const std::string pipe = folder.path("pipe");
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK(refusal(pipe) == "cannot save a state to '" + pipe + "': it is a device, a pipe or a socket");
  const std::string null = folder.path("null");
  REQUIRE(::symlink("/dev/null", null.c_str()) == 0);
  CHECK(refusal(null) == "cannot save a state to '" + null + "': it is a device, a pipe or a socket");
  CHECK(refusal(folder.path("")).find("it is a folder") != std::string::npos);
  const std::string circle = folder.path("circle");
  REQUIRE(::symlink("circle", circle.c_str()) == 0);
  CHECK(refusal(circle) == "cannot save a state to '" + circle + "': its links lead in a circle");
  const std::string missing = folder.path("no/such/folder.state");
  CHECK(refusal(missing) == "cannot create '" + missing + "': No such file or directory");
  const std::string dangling = folder.path("dangling");
  REQUIRE(::symlink(missing.c_str(), dangling.c_str()) == 0);
  CHECK(refusal(dangling).find("cannot save a state to the link '" + dangling + "': cannot create '" + missing) == 0);
}

TEST_CASE("ranks that save to one path at once need no agreement: a reader finds a whole state at any time") {
  const TemporaryFolder folder;
  const std::string path = folder.path("data.state");
  constexpr int kWriters = 2;
  constexpr int kSaves = 60;
  save_state(path, kOld);
  int living = 0;
  for (int writer = 0; writer < kWriters; ++writer) {
    REQUIRE(save_many(path, writer, kSaves) > 0);
    ++living;
  }
  int loads = 0;
  int failed_loads = 0;
  int failed_writers = 0;
  while (living > 0) {
    try {
      (void)load_state(path);
    } catch (const Error& error) {
      if (failed_loads++ == 0) MESSAGE(error.message());
    }
    ++loads;
    int status = 0;
    if (::waitpid(-1, &status, WNOHANG) <= 0) continue;
    --living;
    failed_writers += status == 0 ? 0 : 1;
  }
  CHECK(failed_writers == 0);
  CHECK(failed_loads == 0);
  CHECK(loads > 10);
  const std::string last = load_state(path);
  CHECK((last == large_state(0, kSaves) || last == large_state(1, kSaves)));
  CHECK(folder_size(folder) == 1);
  MESSAGE(kWriters << " writers of " << kSaves << " states each, " << loads << " loads");
}

TEST_CASE("a file with any byte changed, or cut off anywhere, is refused by name") {
  const TemporaryFolder folder;
  const std::string path = folder.path("data.state");
  save_state(path, kNew);
  const std::string good = read(path);
  CHECK(state_in(good, path) == kNew);
  const auto refusal = [&](const std::string& bytes) {
    try {
      (void)state_in(bytes, path);
      return std::string();
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::config);
      return error.message();
    }
  };
  for (size_t length = 0; length < good.size(); ++length) {
    CAPTURE(length);
    CHECK(refusal(good.substr(0, length)).find("data.state") != std::string::npos);
  }
  for (size_t at = 0; at < good.size(); ++at) {
    for (const char change : {'\1', '\x20', '\x80'}) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ change);
      CAPTURE(at);
      // The case matters everywhere but in the checksum's digits.
      const bool digit_case = change == '\x20' && at >= 17 && at < 25;
      CHECK((digit_case || refusal(bad) != ""));
    }
  }
  CHECK(refusal(good + "\n").find("damaged") != std::string::npos);
  CHECK(refusal("penstock state 2\n" + good.substr(17)).find("another version") != std::string::npos);
  CHECK(refusal("\x89PNG\r\n").find("no file of save_state()") != std::string::npos);
}

#if defined(__x86_64__)
// A child that saves kNew, and what befalls it at its system call number `at`: it is killed, or the call fails with
// `error`. False: there was no such call.
bool save_under_trouble(const std::string& path, int at, int error) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(77);
    (void)::raise(SIGSTOP);
    try {
      save_state(path, kNew);
    } catch (const Error&) {
      ::_exit(1);
    }
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
    std::puts("SKIP: this container allows no ptrace");
    std::exit(0);
  }
  bool reached = false;
  // It stops for its SIGSTOP, then at each call's begin and end.
  for (int count = 0; WIFSTOPPED(status); ++count) {
    if (count == 2 * at - 1 && error == 0) {
      reached = true;
      (void)::kill(child, SIGKILL);
    } else if (count == 2 * at - 1) {
      user_regs_struct registers{};
      REQUIRE(::ptrace(PTRACE_GETREGS, child, nullptr, &registers) == 0);
      // The end itself cannot fail.
      if (registers.orig_rax == 60 || registers.orig_rax == 231) {
        (void)::ptrace(PTRACE_CONT, child, nullptr, nullptr);
        REQUIRE(::waitpid(child, &status, 0) == child);
        return false;
      }
      reached = true;
      registers.orig_rax = static_cast<unsigned long long>(-1);  // no call at all
      REQUIRE(::ptrace(PTRACE_SETREGS, child, nullptr, &registers) == 0);
      (void)::ptrace(PTRACE_SYSCALL, child, nullptr, nullptr);
      REQUIRE(::waitpid(child, &status, 0) == child);
      if (WIFSTOPPED(status)) {
        REQUIRE(::ptrace(PTRACE_GETREGS, child, nullptr, &registers) == 0);
        registers.rax = static_cast<unsigned long long>(-error);
        REQUIRE(::ptrace(PTRACE_SETREGS, child, nullptr, &registers) == 0);
        (void)::ptrace(PTRACE_CONT, child, nullptr, nullptr);
        REQUIRE(::waitpid(child, &status, 0) == child);
      }
      continue;
    }
    (void)::ptrace(PTRACE_SYSCALL, child, nullptr, nullptr);
    REQUIRE(::waitpid(child, &status, 0) == child);
  }
  return reached;
}

TEST_CASE("a crash, a full disk or an I/O error at any system call leaves the old state or the new one") {
  if (kSanitizedFactor > 1) return;  // their run time makes calls of its own
  const TemporaryFolder folder;
  const std::string path = folder.path("data.state");
  int calls = 0;
  int old_ones = 0;
  int new_ones = 0;
  for (const int error : {0, ENOSPC, EIO, EINTR}) {
    for (int at = 1;; ++at) {
      CAPTURE(error);
      CAPTURE(at);
      save_state(path, kOld);
      CHECK(folder_size(folder) == 1);  // what a killed save leaves, the next one removes
      const bool reached = save_under_trouble(path, at, error);
      const std::string found = load_state(path);
      CHECK((found == kOld || found == kNew));
      ++(found == kOld ? old_ones : new_ones);
      if (!reached) break;
      ++calls;
      REQUIRE(at < 1000);
    }
    CHECK(load_state(path) == kNew);  // nothing befell the last one
  }
  MESSAGE(calls << " calls, after which " << old_ones << " times the old state was there, and " << new_ones
                << " times the new one");
  CHECK(calls > 20);
  CHECK(old_ones > 10);
  CHECK(new_ones > 4);
}
#endif

}  // namespace
}  // namespace penstock
