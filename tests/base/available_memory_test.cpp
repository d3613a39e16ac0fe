// A limited container has the memory that its control group leaves, not the machine's.
#include "runtime/base/available_memory.h"

#include <doctest/doctest.h>

#include "tests/support/temporary_folder.h"

namespace penstock {
namespace {

constexpr uint64_t kMebibyte = uint64_t{1} << 20;

std::string mebibytes(uint64_t count) {
  return std::to_string(count * kMebibyte) + "\n";
}

// A machine with 8000 MiB available.
class Machine {
 public:
  Machine() {
    folder_.write("proc/meminfo", "MemTotal:       16000000 kB\nMemFree:        1 kB\nMemAvailable:    8192000 kB\n");
  }
  void groups(const std::string& text) { folder_.write("proc/self/cgroup", text); }
  void file(const std::string& path, const std::string& text) { folder_.write("sys/fs/cgroup/" + path, text); }
  uint64_t available_mb() const { return available_memory(folder_.path()) / kMebibyte; }
  uint64_t limit() const { return memory_group_limit(folder_.path()); }

 private:
  TemporaryFolder folder_;
};

TEST_CASE("without control groups the machine's memory counts") {
  const Machine machine;
  CHECK(machine.available_mb() == 8000);
  CHECK(machine.limit() == kUnlimitedMemory);
}

TEST_CASE("a group's limit counts less what it holds; cached files are dropped when memory is wanted") {
  Machine machine;
  machine.groups("0::/job\n");
  machine.file("job/memory.max", mebibytes(512));
  machine.file("job/memory.current", mebibytes(300));
  CHECK(machine.available_mb() == 212);
  machine.file("job/memory.stat", "anon 1\ninactive_file " + mebibytes(100) + "active_file " + mebibytes(50));
  CHECK(machine.available_mb() == 362);
  CHECK(machine.limit() == 512 * kMebibyte);
}

TEST_CASE("the group with the least room decides, wherever it is above the process") {
  Machine machine;
  machine.groups("0::/pod/container/job\n");
  machine.file("memory.max", "max\n");
  machine.file("pod/memory.max", mebibytes(1000));
  machine.file("pod/memory.current", mebibytes(990));
  machine.file("pod/container/memory.max", mebibytes(500));
  machine.file("pod/container/memory.current", mebibytes(20));
  machine.file("pod/container/job/memory.max", "max\n");
  CHECK(machine.available_mb() == 10);
  CHECK(machine.limit() == 500 * kMebibyte);
}

TEST_CASE("a group that holds more than its limit leaves nothing") {
  Machine machine;
  machine.groups("0::/\n");
  machine.file("memory.max", mebibytes(100));
  machine.file("memory.current", mebibytes(101));
  CHECK(machine.available_mb() == 0);
}

TEST_CASE("version 1: the memory controller's own path, and its word for no limit") {
  Machine machine;
  machine.groups("9:name=systemd:/\n4:cpu,memory:/docker/abc\n0::/\n");
  machine.file("memory/memory.limit_in_bytes", "9223372036854771712\n");
  CHECK(machine.limit() == kUnlimitedMemory);
  machine.file("memory/docker/abc/memory.limit_in_bytes", mebibytes(256));
  machine.file("memory/docker/abc/memory.usage_in_bytes", mebibytes(56));
  machine.file("memory/docker/abc/memory.stat", "inactive_file 9999999999\ntotal_inactive_file " + mebibytes(30));
  CHECK(machine.available_mb() == 230);
}

TEST_CASE("in a container the path is the host's, and only the root is there") {
  Machine machine;
  machine.groups("0::/kubepods/burstable/pod1/abc\n");
  machine.file("memory.max", mebibytes(64));
  machine.file("memory.current", mebibytes(4));
  CHECK(machine.available_mb() == 60);
}

TEST_CASE("what cannot be read as a number is no limit") {
  Machine machine;
  machine.groups("nonsense\n0::/a\n");
  machine.file("a/memory.max", "lots\n");
  CHECK(machine.available_mb() == 8000);
}

TEST_CASE("this process") {
  CHECK(available_memory() > 0);
  CHECK(memory_group_limit() > 0);
}

}  // namespace
}  // namespace penstock
