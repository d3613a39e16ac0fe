#include "runtime/base/switches.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "runtime/base/error.h"

namespace penstock {
namespace {

struct Switch {
  const char* name;
  std::vector<std::string> values;
};

}  // namespace

void check_switches() {
  static const std::vector<Switch> switches = {{"PENSTOCK_VECTORS", {"avx2", "sse4", "ssse3"}},
                                               {"PENSTOCK_DECODE", {"library"}},
                                               {"PENSTOCK_READ_AHEAD", {"always"}},
                                               {"PENSTOCK_CARDS", {"host", "none"}}};
  for (const Switch& known : switches) {
    const char* const value = std::getenv(known.name);
    if (value == nullptr || *value == 0 || std::ranges::find(known.values, value) != known.values.end()) continue;
    std::string all;
    for (const std::string& allowed : known.values) all += (all.empty() ? "" : ", ") + allowed;
    throw Error(ErrorKind::usage, std::string("the environment has ") + known.name + "='" + value + "'",
                "it may be " + all + "; or unset it");
  }
}

}  // namespace penstock
