// All that penstock reads from the environment, but for what its own processes tell each other (runtime/process,
// attaching) and what launchers set.
//
//   if (switches().decode == "library") …
//   check_switches();      // where a program begins to use the library
//
// Purpose: one list of the names. Those with a fixed set of values are checked, because whoever compares two settings
//   with a misspelt one compares one setting with itself.
// Failure: check_switches() throws Error(usage), naming the variable and its values. Thread-safety: as getenv; each
//   call reads the environment as it is then.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace penstock {

// What is not set, or empty, is an empty string.
struct Switches {
  // For tests and comparisons: batches are the same with any of them.
  std::string gpus;        // PENSTOCK_GPUS       host: this CPU plays the GPUs; none: there are none
  std::string decode;      // PENSTOCK_DECODE     library: all of JPEG by libjpeg-turbo
  std::string read_ahead;  // PENSTOCK_READ_AHEAD always: however fast the disk is
  std::string vectors;     // PENSTOCK_VECTORS    avx2, sse4, ssse3: no wider vectors than these

  // Where something is.
  std::string nccl;           // PENSTOCK_NCCL: NVIDIA's library
  std::string nvjpeg;         // PENSTOCK_NVJPEG: likewise
  std::string python;         // PENSTOCK_PYTHON: the interpreter of Python workers
  std::string worker_script;  // PENSTOCK_WORKER_SCRIPT: what they run

  // Set by others.
  std::string mps_percent;         // CUDA_MPS_ACTIVE_THREAD_PERCENTAGE
  std::string library_folders;     // LD_LIBRARY_PATH
  std::string python_environment;  // VIRTUAL_ENV
  std::string temporary_folder;    // TMPDIR
};

Switches switches();
void check_switches();

// The value of a variable that is no switch: what processes of a job pass to each other.
std::string environment_value(const char* name);
// All variables whose names begin with `prefix`.
std::map<std::string, std::string> environment_values(std::string_view prefix);

}  // namespace penstock
