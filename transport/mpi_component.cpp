#include "transport/mpi_component.h"

#include <dlfcn.h>
#include <unistd.h>

#include "runtime/base/error.h"

namespace penstock {
namespace {

// The folder of the library that this function is in, with a slash; empty where it cannot be told.
std::string own_folder() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<void*>(&own_folder), &info) == 0 || info.dli_fname == nullptr) return {};
  const std::string path = info.dli_fname;
  return path.substr(0, path.rfind('/') + 1);
}

}  // namespace

std::unique_ptr<MpiSession> start_mpi(const MpiOptions& options) {
  // RTLD_GLOBAL: Open MPI loads plug-ins of its own that expect to find libmpi's symbols.
  // Beside this library by its path: a search path of ours ($ORIGIN) counts for callers in this library only, and under
  // the address sanitizer the caller of dlopen is the sanitizer.
  const std::string beside = own_folder() + "libpenstock_mpi.so";
  const bool exists = beside.find('/') != std::string::npos && ::access(beside.c_str(), F_OK) == 0;
  void* library = ::dlopen(exists ? beside.c_str() : "libpenstock_mpi.so", RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    throw Error(ErrorKind::runtime, std::string("cannot load the MPI component: ") + ::dlerror(),
                "build with -DPENSTOCK_MPI=ON (Debian: apt-get install libopenmpi-dev), or run without mpirun");
  }
  auto* entry = reinterpret_cast<MpiStartFunction>(::dlsym(library, kMpiComponentEntry));
  if (entry == nullptr) {
    throw Error(ErrorKind::runtime, "the MPI component found does not belong to this version of penstock",
                "install both from one build");
  }
  std::string error;
  MpiSession* session = entry(&options, &error);
  if (session == nullptr) throw Error(ErrorKind::runtime, error, "run under mpirun; `penstock check` tests MPI");
  return std::unique_ptr<MpiSession>(session);
}

}  // namespace penstock
