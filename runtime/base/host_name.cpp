#include "runtime/base/host_name.h"

#include <unistd.h>

namespace penstock {

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "this host";
}

}  // namespace penstock
