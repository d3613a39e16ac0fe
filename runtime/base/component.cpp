#include "runtime/base/component.h"

#include <dlfcn.h>
#include <unistd.h>

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

void* open_component(const std::string& file, int flags, std::string& why_not) {
  const std::string beside = own_folder() + file;
  const bool exists = beside.find('/') != std::string::npos && ::access(beside.c_str(), F_OK) == 0;
  void* const library = ::dlopen(exists ? beside.c_str() : file.c_str(), flags);
  if (library == nullptr) why_not = ::dlerror();
  return library;
}

}  // namespace penstock
