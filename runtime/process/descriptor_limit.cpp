#include "runtime/process/descriptor_limit.h"

#include <sys/resource.h>

#include "runtime/base/error.h"

namespace penstock {

void allow_descriptors(int needed, const std::string& who) {
  const auto least = static_cast<rlim_t>(needed);
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= least) return;
  const rlimit raised{least, limit.rlim_max};
  if (limit.rlim_max >= least && ::setrlimit(RLIMIT_NOFILE, &raised) == 0) return;
  throw Error(ErrorKind::runtime,
              who + " needs " + std::to_string(needed) +
                  " open files and sockets at least, and this process may have " + std::to_string(limit.rlim_max),
              "raise ulimit -n, to 1024 or more; in a container --ulimit nofile, in a systemd unit LimitNOFILE");
}

}  // namespace penstock
