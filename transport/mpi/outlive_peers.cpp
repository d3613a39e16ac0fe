#include "transport/outlive_peers.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <string_view>

namespace penstock::mpi {
namespace {

struct Found {
  PenstockCode tcp{0, 0};
  PenstockCode events{0, 0};
};

int find_libraries(dl_phdr_info* info, size_t, void* found) {
  const std::string_view path = info->dlpi_name != nullptr ? info->dlpi_name : "";
  const std::string_view name = path.substr(path.rfind('/') + 1);
  PenstockCode* code = nullptr;
  if (name == "mca_btl_tcp.so") code = &static_cast<Found*>(found)->tcp;
  if (name.starts_with("mca_pmix_")) code = &static_cast<Found*>(found)->events;
  if (code == nullptr) return 0;
  code->begin = UINTPTR_MAX;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& part = info->dlpi_phdr[i];
    if (part.p_type != PT_LOAD) continue;
    code->begin = std::min<uintptr_t>(code->begin, info->dlpi_addr + part.p_vaddr);
    code->end = std::max<uintptr_t>(code->end, info->dlpi_addr + part.p_vaddr + part.p_memsz);
  }
  return 0;
}

}  // namespace

void outlive_peers() {
  const auto outlive =
      reinterpret_cast<decltype(&penstock_outlive_peers)>(::dlsym(RTLD_DEFAULT, "penstock_outlive_peers"));
  if (outlive == nullptr) return;
  Found found;
  (void)::dl_iterate_phdr(find_libraries, &found);
  outlive(found.tcp, found.events);
}

}  // namespace penstock::mpi
