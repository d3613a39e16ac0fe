#include "transport/mpi/dead_connections.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <string_view>

namespace penstock::mpi {
namespace {

struct Range {
  uintptr_t begin = UINTPTR_MAX;
  uintptr_t end = 0;
};

int find_tcp(dl_phdr_info* info, size_t, void* found) {
  const std::string_view name = info->dlpi_name != nullptr ? info->dlpi_name : "";
  if (!name.ends_with("/mca_btl_tcp.so")) return 0;
  auto* range = static_cast<Range*>(found);
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& part = info->dlpi_phdr[i];
    if (part.p_type != PT_LOAD) continue;
    range->begin = std::min<uintptr_t>(range->begin, info->dlpi_addr + part.p_vaddr);
    range->end = std::max<uintptr_t>(range->end, info->dlpi_addr + part.p_vaddr + part.p_memsz);
  }
  return 1;
}

}  // namespace

void park_dead_connections() {
  const auto park =
      reinterpret_cast<decltype(&penstock_park_connections_of)>(::dlsym(RTLD_DEFAULT, "penstock_park_connections_of"));
  Range tcp;
  if (park != nullptr && ::dl_iterate_phdr(find_tcp, &tcp) != 0) park(tcp.begin, tcp.end);
}

}  // namespace penstock::mpi
