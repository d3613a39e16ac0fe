// Starting the training program: what is to be started, the fork, and everything between fork and exec.
//
//   ProgramSpec spec;  spec.argv = {"python", "train.py"};  …
//   ProgramStart start = start_program(spec, relays);          // the helper's side; the child is on its way to exec
//   if (!start.problem.empty()) ...                            // not even a process: said in words
//   poll({start.exec_pipe, POLLIN, 0}) …                       // readable when exec was tried
//   const std::string problem = exec_problem(start.exec_pipe); // "cannot start 'pyhton': No such file or directory"
//
// How exec's failure is known: the child holds the only writing end of a pipe, close-on-exec. A successful exec closes
//   it without a word; a child that cannot exec writes why, and exits.
// The child: a session of its own, SIGKILL when the helper dies, no blocked signals, no descriptor but stdin, stdout
//   and stderr, the cores and environment of the spec. The helper is one thread, so it may allocate until exec.
// Thread-safety: of a process with one thread only. Ownership: the caller has the process and the pipe.
// Failure: in words, never thrown but std::bad_alloc.
#pragma once

#include <sys/types.h>

#include <array>
#include <string>
#include <vector>

#include "runtime/process/output_relay.h"

namespace penstock {

struct ProgramSpec {
  std::vector<std::string> argv;         // argv[0] is looked up in the environment's PATH
  std::vector<std::string> environment;  // the whole of it, "NAME=value"
  std::vector<int> cpus;                 // to run on; empty: any
  bool keep_stdin = false;               // trainer 0's program only
  bool relay_output = false;             // through the helper (output_relay.h): for ranks of a launcher
  double grace_s = 5;                    // between SIGTERM and SIGKILL when the rank dies without a word
};

struct ProgramStart {
  pid_t pid = -1;
  int exec_pipe = -1;
  std::string problem;  // where there is no process
};

// With relay_output, the relays of stdout and stderr are opened anew: one for both where both are the same file. From a
// successful start on this process's own stdin is /dev/null: the rank's input has one reader.
ProgramStart start_program(const ProgramSpec& spec, std::array<OutputRelay, 2>& relays);

// What the child wrote before it gave up; empty when exec succeeded. Closes the pipe.
std::string exec_problem(int exec_pipe);

}  // namespace penstock
