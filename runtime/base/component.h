// Parts of penstock that are loaded at run time, so that nothing else links what they need: MPI, CUDA.
//
//   std::string why;
//   void* library = open_component("libpenstock_mpi.so", RTLD_NOW | RTLD_GLOBAL, why);   // nullptr: dlerror() in `why`
//   auto* entry = reinterpret_cast<MpiStartFunction>(::dlsym(library, kMpiComponentEntry));
//
// Looked for beside the library (or program) that this function is in, by path, then in the system's folders: a search
// path of ours ($ORIGIN) counts for callers in this library only, and under the address sanitizer the caller of dlopen
// is the sanitizer. It stays loaded.
// Thread-safety: as dlopen's: any thread.
#pragma once

#include <string>

namespace penstock {

void* open_component(const std::string& file, int flags, std::string& why_not);

}  // namespace penstock
