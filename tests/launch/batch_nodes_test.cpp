// How the nodes of a batch job find each other, and what mpirun's agent and a node do with a command.
#include "launch/batch_nodes.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <iterator>
#include <thread>

#include "launch/launch_line.h"
#include "runtime/base/host_name.h"
#include "tests/support/error_of.h"
#include "tests/support/temporary_folder.h"

using namespace penstock;

namespace {

std::string content(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

void append(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::app) << text;
}

bool becomes(const std::string& path, const std::string& expected) {
  for (int i = 0; i < 600 && content(path) != expected; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return content(path) == expected;
}

int exit_code_of(pid_t pid) {
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace

TEST_CASE("the variable and srun's task say which node this is") {
  CHECK_FALSE(batch_place({{"SLURM_PROCID", "1"}, {"SLURM_STEP_NUM_TASKS", "3"}}));
  const auto place = batch_place({{kNodesVariable, "/f"}, {"SLURM_PROCID", "1"}, {"SLURM_STEP_NUM_TASKS", "3"}});
  REQUIRE(place);
  CHECK(place->folder == "/f");
  CHECK(place->node == 1);
  CHECK(place->nodes == 3);
  CHECK(batch_place({{kNodesVariable, "/f"}})->nodes == 1);
}

TEST_CASE("the first node learns all names, and its agent gives a host its command and waits for the exit code") {
  TemporaryFolder folder;
  folder.write("node0", "");
  folder.write("node1", "");
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    append(folder.path("node1"), "elsewhere.example.org\n");
  });
  std::optional<BatchNodes> nodes;
  nodes.emplace(BatchPlace{folder.path(), 0, 2});
  other.join();
  CHECK(nodes->names() == std::vector<std::string>{host_name(), "elsewhere.example.org"});
  CHECK(content(folder.path("pid")) == std::to_string(getpid()) + "\n");
  const pid_t agent = fork();
  if (agent == 0) {
    execl(nodes->agent().c_str(), "agent", "elsewhere", "PATH=/x ;", "orted -mca a 'b c'", nullptr);
    _exit(127);
  }
  CHECK(becomes(folder.path("node1"), "elsewhere.example.org\nPATH=/x ; orted -mca a 'b c'\n"));
  append(folder.path("node1"), "7\n");
  CHECK(exit_code_of(agent) == 7);
  const pid_t nowhere = fork();
  if (nowhere == 0) {
    execl(nodes->agent().c_str(), "agent", "unknown", "true", nullptr);
    _exit(127);
  }
  CHECK(exit_code_of(nowhere) == 255);
  nodes.reset();
  CHECK(access(folder.path().c_str(), F_OK) != 0);
}

TEST_CASE("a node runs its command, and stays until nothing that descends from it is left") {
  TemporaryFolder folder;
  folder.write("node1", "");
  const pid_t node = fork();
  if (node == 0) _exit(serve_node({folder.path(), 1, 2}, 1));
  REQUIRE(becomes(folder.path("node1"), host_name() + "\n"));
  append(folder.path("node1"), "(sleep 1; echo late >" + folder.path("late") + ") & exit 5\n");
  CHECK(exit_code_of(node) == 0);
  CHECK(content(folder.path("late")) == "late\n");
  CHECK(content(folder.path("node1")).ends_with("\n5\n"));
}

TEST_CASE("what a node still has long after it was asked to end is ended") {
  TemporaryFolder folder;
  folder.write("node1", "");
  const pid_t node = fork();
  if (node == 0) _exit(serve_node({folder.path(), 1, 2}, -kHelpersEnd_s));
  REQUIRE(becomes(folder.path("node1"), host_name() + "\n"));
  append(folder.path("node1"), "trap '' TERM; echo >" + folder.path("runs") + "; sleep 100\n");
  REQUIRE(becomes(folder.path("runs"), "\n"));
  kill(node, SIGTERM);
  CHECK(exit_code_of(node) == 0);
}

TEST_CASE("a node that has nothing to do ends with the job") {
  TemporaryFolder folder;
  folder.write("node1", "");
  const pid_t node = fork();
  if (node == 0) _exit(serve_node({folder.path(), 1, 2}, 1));
  REQUIRE(becomes(folder.path("node1"), host_name() + "\n"));
  REQUIRE(unlink(folder.path("node1").c_str()) == 0);
  CHECK(exit_code_of(node) == 0);
}

TEST_CASE("what does not fit is refused by name, and the other nodes are told") {
  const auto refused = [](int nodes, const char* node1, const std::string& what, bool told = true) {
    TemporaryFolder folder;
    if (nodes > 0) folder.write("node0", "");
    if (node1 != nullptr) folder.write("node1", node1);
    if (!told) REQUIRE(chmod(folder.path().c_str(), nodes > 0 ? 0755 : 0700) == 0);
    const Error error = error_of([&] { BatchNodes met({folder.path(), 0, nodes}, 0.3); });
    CHECK_MESSAGE(std::string(error.what()).find(what) != std::string::npos, error.what());
    CHECK((access(folder.path().c_str(), F_OK) != 0) == told);
  };
  const std::string same = host_name() + "\n";
  refused(2, "", "nothing was heard of node 1 of this job's 2 (counted from 0)");
  refused(2, same.c_str(), "nodes 0 and 1 are both called '" + host_name() + "'");
  refused(2, nullptr, "the job was ended before it began");
  refused(1, nullptr, "no private folder of this user", false);
  refused(0, nullptr, "there is no file", false);
}
