#include "runtime/base/switches.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "runtime/base/error.h"

extern char** environ;

namespace penstock {
namespace {

struct Variable {
  const char* name;
  std::string Switches::*member;
  std::vector<std::string> values{};  // empty: any
};

const std::vector<Variable>& variables() {
  static const std::vector<Variable> all = {{"PENSTOCK_GPUS", &Switches::gpus, {"host", "none"}},
                                            {"PENSTOCK_DECODE", &Switches::decode, {"library"}},
                                            {"PENSTOCK_READ_AHEAD", &Switches::read_ahead, {"always"}},
                                            {"PENSTOCK_VECTORS", &Switches::vectors, {"avx2", "sse4", "ssse3"}},
                                            {"PENSTOCK_NCCL", &Switches::nccl},
                                            {"PENSTOCK_NVJPEG", &Switches::nvjpeg},
                                            {"PENSTOCK_PYTHON", &Switches::python},
                                            {"PENSTOCK_WORKER_SCRIPT", &Switches::worker_script},
                                            {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", &Switches::mps_percent},
                                            {"LD_LIBRARY_PATH", &Switches::library_folders},
                                            {"VIRTUAL_ENV", &Switches::python_environment},
                                            {"TMPDIR", &Switches::temporary_folder}};
  return all;
}

}  // namespace

std::string environment_value(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::map<std::string, std::string> environment_values(std::string_view prefix) {
  std::map<std::string, std::string> out;
  for (char** variable = environ; variable != nullptr && *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    const size_t equals = text.find('=');
    if (equals != std::string_view::npos && text.substr(0, equals).starts_with(prefix)) {
      out.emplace(text.substr(0, equals), text.substr(equals + 1));
    }
  }
  return out;
}

Switches switches() {
  Switches out;
  for (const Variable& one : variables()) out.*one.member = environment_value(one.name);
  return out;
}

void check_switches() {
  for (const Variable& one : variables()) {
    const std::string value = environment_value(one.name);
    if (value.empty() || one.values.empty() || std::ranges::find(one.values, value) != one.values.end()) continue;
    std::string all;
    for (const std::string& allowed : one.values) all += (all.empty() ? "" : ", ") + allowed;
    throw Error(ErrorKind::usage, std::string("the environment has ") + one.name + "='" + value + "'",
                "it may be " + all + "; or unset it");
  }
}

}  // namespace penstock
