// What `penstock doctor` finds of a machine, a line each: what there is, what of it a job would miss, and what to do.
//
//   Findings findings;
//   find_machine(findings);  find_mpi(findings);  find_gpus(findings);
//   std::fputs(findings_text(findings).c_str(), stdout);
//
// Levels: `fine`; `note`: penstock works without, and says here what is lost; `problem`: what it is part of does not
//   work.
// Failure: none: what cannot be asked is a finding. Thread-safety: from one thread; find_mpi() and find_gpus() load
// libraries, and find_mpi() runs `mpirun --version`.
#pragma once

#include <string>
#include <vector>

namespace penstock {

enum class FindingLevel { fine, note, problem };

struct Finding {
  std::string topic;  // "cpu"
  std::string text;   // "AMD EPYC 9R14, 2 of 2 CPUs, AVX-512"
  FindingLevel level = FindingLevel::fine;
  std::string remedy;  // of a note or problem
};
using Findings = std::vector<Finding>;

void find_machine(Findings& findings);  // system, CPUs, memory, shared memory, io_uring, copies between processes
std::string processor_name();           // empty: not known
void find_mpi(Findings& findings);      // mpirun, the component, its support of CUDA
void find_gpus(Findings& findings);     // the component, driver, GPUs, nvJPEG, NCCL

// Topic and text in columns; remedies below what they are for.
std::string findings_text(const Findings& findings);
// A list of {topic, text, level, remedy}.
std::string findings_json(const Findings& findings);

// Does this machine itself know what `localhost` is (texts of /etc/hosts and /etc/nsswitch.conf)? Where it has to ask a
// name server, mpirun asks twenty times: its hwloc looks for X displays, localhost:0 to :9, in two rounds. Each answer
// that does not come costs five seconds or more.
bool knows_localhost(const std::string& hosts, const std::string& nsswitch);
// What to do, of this machine as it is; empty: nothing.
std::string localhost_remedy();

}  // namespace penstock
