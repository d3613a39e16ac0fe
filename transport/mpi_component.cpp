#include "transport/mpi_component.h"

#include <dlfcn.h>

#include <optional>
#include <type_traits>

#include "runtime/base/component.h"
#include "runtime/base/error.h"

namespace penstock {
namespace {

void* component() {
  std::string why;
  // RTLD_GLOBAL: Open MPI loads plug-ins of its own that expect to find libmpi's symbols.
  void* const library = open_component("libpenstock_mpi.so", RTLD_NOW | RTLD_GLOBAL, why);
  if (library == nullptr) {
    throw Error(ErrorKind::runtime, "cannot load the MPI component: " + why,
                "build with -DPENSTOCK_MPI=ON (Debian: apt-get install libopenmpi-dev), or run without mpirun");
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
