// The machine without GPUs and MPI: what loaders and trainers of one node live on.
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>

#include "launch/findings.h"
#include "runtime/base/available_memory.h"
#include "runtime/base/cpu_set.h"
#include "runtime/base/error.h"
#include "runtime/base/memory.h"
#include "runtime/datasets/read_engine.h"
#include "runtime/decode/jpeg/entropy_lanes.h"

namespace penstock {
namespace {

std::string first_line_of(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// What stands behind `key` in a file of "key : value" or "key=value" lines.
std::string value_of(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.compare(0, key.size(), key) != 0) continue;
    const size_t at = line.find_first_not_of(" \t:=\"", key.size());
    if (at == std::string::npos) return {};
    return line.substr(at, line.find_last_not_of(" \t\"") + 1 - at);
  }
  return {};
}

std::string size_text(double bytes) {
  char text[32];
  std::snprintf(text, sizeof text, bytes < 1e9 ? "%.0f MB" : "%.1f GB", bytes / (bytes < 1e9 ? 1e6 : 1e9));
  return text;
}

void find_system(Findings& findings) {
  utsname system{};
  ::uname(&system);
  const std::string distribution = value_of("/etc/os-release", "PRETTY_NAME");
  findings.push_back({"system", std::string(system.sysname) + " " + system.release + " " + system.machine +
                                    (distribution.empty() ? "" : ", " + distribution)});
}

void find_cpus(Findings& findings) {
  const int allowed = CpuSet::allowed().count();
  const long online = ::sysconf(_SC_NPROCESSORS_ONLN);
  const std::string model = processor_name();
  const char* const vectors = lane_shape().vectors;
  Finding finding{"cpu", (model.empty() ? "" : model + ", ") + std::to_string(allowed) + " of " +
                             std::to_string(online) + " CPUs, " +
                             (vectors != nullptr ? std::string(vectors) + ": JPEG's entropy decoding in sixteen lanes"
                                                 : "no AVX2: JPEG's entropy decoding without lanes")};
  if (allowed < online) {
    finding.level = FindingLevel::note;
    finding.remedy = "a launcher, container or taskset keeps this process to some CPUs; loader.threads shares those";
  }
  findings.push_back(finding);
}

void find_memory(Findings& findings) {
  const auto kilobytes = [](const char* key) { return std::atof(value_of("/proc/meminfo", key).c_str()); };
  const double total = kilobytes("MemTotal") * 1024;
  const uint64_t limit = memory_group_limit();
  std::string text = size_text(total) + ", " + size_text(kilobytes("MemAvailable") * 1024) + " of it available";
  Finding finding{"memory", text};
  if (static_cast<double>(limit) < total) {
    finding.text += "; this control group may use " + size_text(static_cast<double>(limit));
    finding.level = FindingLevel::note;
    finding.remedy = "keep loader.memory_gb of all loaders here, and the trainers' batches, below that";
  }
  findings.push_back(finding);
}

void find_shared_memory(Findings& findings) {
  try {
    SharedMemory::create("penstock-doctor", 1 << 20);
    findings.push_back({"shared memory", "memfd works: transport shm"});
  } catch (const Error& error) {
    findings.push_back({"shared memory", std::string("no memfd: ") + error.message(), FindingLevel::problem,
                        "transport shm cannot work here; say transport: mpi"});
  }
  rlimit locked{};
  ::getrlimit(RLIMIT_MEMLOCK, &locked);
  const bool unlimited = locked.rlim_cur == RLIM_INFINITY;
  findings.push_back(
      {"locked memory", unlimited ? "unlimited" : "at most " + size_text(static_cast<double>(locked.rlim_cur))});
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  Finding finding{"open files", "at most " + std::to_string(files.rlim_cur)};
  if (files.rlim_cur < 1024) {
    finding.level = FindingLevel::note;
    finding.remedy = "raise it with `ulimit -n`: shards, sockets and workers each take some";
  }
  findings.push_back(finding);
}

std::string text_of(const char* path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void find_names(Findings& findings) {
  const std::string remedy = localhost_remedy();
  if (remedy.empty()) {
    findings.push_back({"host names", "localhost is known without a name server"});
    return;
  }
  findings.push_back(
      {"host names",
       "localhost is not in /etc/hosts: mpirun asks a name server for it, and may take 5 s or more at every "
       "start",
       FindingLevel::note, remedy});
}

void find_uring(Findings& findings) {
  std::string why;
  ReadEngineOptions options;
  options.reads = 1;
  options.done = [](const std::shared_ptr<ReadJob>&) {};
  if (const auto engine = make_uring_engine(options, why)) {
    engine->stop(kSecond);
    findings.push_back({"io_uring", "works: reads ahead by the kernel"});
    return;
  }
  findings.push_back({"io_uring", why, FindingLevel::note, "reads run ahead by threads instead"});
}

// Open MPI on one node copies from process to process by process_vm_readv, where it may.
void find_single_copy(Findings& findings) {
  char from = 1;
  char to = 0;
  const iovec local{&to, 1};
  const iovec remote{&from, 1};
  const bool allowed = ::process_vm_readv(::getpid(), &local, 1, &remote, 1, 0) == 1;
  const std::string why = allowed ? "" : std::strerror(errno);
  const std::string scope = first_line_of("/proc/sys/kernel/yama/ptrace_scope");
  const bool restricted = !scope.empty() && scope != "0";
  if (allowed && !restricted) {
    findings.push_back(
        {"single copy", "processes of one user may read each other's memory: MPI copies once on a node"});
    return;
  }
  findings.push_back({"single copy",
                      allowed ? "kernel.yama.ptrace_scope is " + scope + ", so MPI copies twice on a node"
                              : "process_vm_readv: " + why + ", so MPI copies twice on a node",
                      FindingLevel::note, "of no consequence for transport auto, which takes shared memory there"});
}

}  // namespace

std::string processor_name() {
  return value_of("/proc/cpuinfo", "model name");
}

std::string localhost_remedy() {
  if (knows_localhost(text_of("/etc/hosts"), text_of("/etc/nsswitch.conf"))) return {};
  return "add the line `127.0.0.1 localhost` to /etc/hosts, or start mpirun with HWLOC_COMPONENTS=-gl in its "
         "environment, "
         "as `penstock launch --run` does";
}

void find_machine(Findings& findings) {
  find_system(findings);
  find_cpus(findings);
  find_memory(findings);
  find_shared_memory(findings);
  find_names(findings);
  find_uring(findings);
  find_single_copy(findings);
}

}  // namespace penstock
