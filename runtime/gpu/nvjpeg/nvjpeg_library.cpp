#include "runtime/gpu/nvjpeg/nvjpeg_library.h"

#include <dlfcn.h>

#include <array>

#include "runtime/base/error.h"
#include "runtime/base/library_search.h"
#include "runtime/base/switches.h"

namespace penstock {
namespace {

NvjpegLibrary load_first() {
  std::string tried;
  for (const std::string& file : nvjpeg_candidates()) {
    NvjpegLibrary library;
    std::string why;
    if (load_nvjpeg(file, library, why)) return library;
    tried += (tried.empty() ? "" : "; ") + why;
  }
  throw Error(ErrorKind::runtime, "nvJPEG cannot be loaded: " + tried,
              "pip install nvidia-nvjpeg, or name the file in PENSTOCK_NVJPEG, or say loader.nvjpeg: off");
}

}  // namespace

std::vector<std::string> nvjpeg_candidates() {
  return library_candidates({.named = switches().nvjpeg,
                             .names = {"libnvjpeg.so.13", "libnvjpeg.so.12"},
                             .in_packages = {"cu13/lib/libnvjpeg.so.13", "nvjpeg/lib/libnvjpeg.so.12"}});
}

bool load_nvjpeg(const std::string& file, NvjpegLibrary& library, std::string& why_not) {
  void* const handle = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    why_not = ::dlerror();
    return false;
  }
  library.file = file;
#define PENSTOCK_NVJPEG_FIND(name) \
  library.name = reinterpret_cast<decltype(library.name)>(::dlsym(handle, "nvjpeg" #name));
#define PENSTOCK_NVJPEG_REQUIRE(name)                          \
  PENSTOCK_NVJPEG_FIND(name)                                   \
  if (library.name == nullptr) {                               \
    why_not = file + " has no nvjpeg" #name ": it is too old"; \
    ::dlclose(handle);                                         \
    return false;                                              \
  }
  PENSTOCK_NVJPEG_FUNCTIONS(PENSTOCK_NVJPEG_REQUIRE)
  PENSTOCK_NVJPEG_OPTIONAL_FUNCTIONS(PENSTOCK_NVJPEG_FIND)
#undef PENSTOCK_NVJPEG_REQUIRE
#undef PENSTOCK_NVJPEG_FIND
  return true;
}

const NvjpegLibrary& nvjpeg_library() {
  static const NvjpegLibrary library = load_first();  // an exception leaves it to the next call
  return library;
}

std::string NvjpegLibrary::name() const {
  std::array<int, 3> version{};
  for (size_t part = 0; part < version.size(); ++part) {
    (void)GetProperty(static_cast<libraryPropertyType>(part), &version[part]);
  }
  return "nvJPEG " + std::to_string(version[0]) + "." + std::to_string(version[1]) + "." + std::to_string(version[2]);
}

const char* text_of(nvjpegStatus_t status) noexcept {
  switch (status) {
    case NVJPEG_STATUS_SUCCESS: return "success";
    case NVJPEG_STATUS_NOT_INITIALIZED: return "not initialised";
    case NVJPEG_STATUS_INVALID_PARAMETER: return "invalid parameter";
    case NVJPEG_STATUS_BAD_JPEG: return "bad JPEG";
    case NVJPEG_STATUS_JPEG_NOT_SUPPORTED: return "JPEG not supported";
    case NVJPEG_STATUS_ALLOCATOR_FAILURE: return "allocator failure";
    case NVJPEG_STATUS_EXECUTION_FAILED: return "execution failed";
    case NVJPEG_STATUS_ARCH_MISMATCH: return "architecture mismatch";
    case NVJPEG_STATUS_INTERNAL_ERROR: return "internal error";
    case NVJPEG_STATUS_IMPLEMENTATION_NOT_SUPPORTED: return "implementation not supported";
    case NVJPEG_STATUS_INCOMPLETE_BITSTREAM: return "incomplete bitstream";
  }
  return "unknown status";
}

}  // namespace penstock
