#include "runtime/gpu/nccl/nccl_library.h"

#include <dlfcn.h>

#include "runtime/base/error.h"
#include "runtime/base/library_search.h"

namespace penstock {
namespace {

constexpr int kOldest = 21400;

NcclLibrary load_first() {
  std::string tried;
  for (const std::string& file : library_candidates(nccl_search())) {
    NcclLibrary library;
    std::string why;
    if (load_nccl(file, library, why)) return library;
    tried += (tried.empty() ? "" : "; ") + why;
  }
  throw Error(ErrorKind::runtime, "NCCL cannot be loaded: " + tried,
              "pip install nvidia-nccl-cu13, or name the file in PENSTOCK_NCCL, or say loader.gpu_links: off");
}

}  // namespace

bool load_nccl(const std::string& file, NcclLibrary& library, std::string& why_not) {
  // The loader gives the one that is there already, by its name, whatever folder that came from.
  void* const handle = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    why_not = ::dlerror();
    return false;
  }
  library.file = file;
#define PENSTOCK_NCCL_FIND(name)                                                          \
  library.name = reinterpret_cast<decltype(library.name)>(::dlsym(handle, "nccl" #name)); \
  if (library.name == nullptr) {                                                          \
    why_not = file + " has no nccl" #name ": it is too old";                              \
    ::dlclose(handle);                                                                    \
    return false;                                                                         \
  }
  PENSTOCK_NCCL_FUNCTIONS(PENSTOCK_NCCL_FIND)
#undef PENSTOCK_NCCL_FIND
  int version = 0;
  if (library.GetVersion(&version) != ncclSuccess || version < kOldest) {
    why_not = file + " is " + library.name() + ": it is too old";
    ::dlclose(handle);
    return false;
  }
  return true;
}

const NcclLibrary& nccl_library() {
  static const NcclLibrary library = load_first();  // an exception leaves it to the next call
  return library;
}

std::string NcclLibrary::name() const {
  int version = 0;
  (void)GetVersion(&version);
  return "NCCL " + std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

}  // namespace penstock
