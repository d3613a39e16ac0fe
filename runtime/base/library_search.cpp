#include "runtime/base/library_search.h"

#include <dlfcn.h>

#include <filesystem>

#include "runtime/base/switches.h"

namespace penstock {
namespace {

// site-packages of the environment that `root` is, if it is one.
void add_packages(const std::filesystem::path& root, std::vector<std::filesystem::path>& folders) {
  std::error_code none;
  for (const auto& python : std::filesystem::directory_iterator(root / "lib", none)) {
    if (!python.path().filename().string().starts_with("python3")) continue;
    for (const char* const packages : {"site-packages", "dist-packages"}) {
      folders.push_back(python.path() / packages / "nvidia");
    }
  }
}

}  // namespace

LibrarySearch nccl_search() {
  return {.named = switches().nccl, .names = {"libnccl.so.2"}, .in_packages = {"nccl/lib/libnccl.so.2"}};
}

std::vector<std::string> library_candidates(const LibrarySearch& search) {
  // A library named by the user is the only one tried.
  if (!search.named.empty()) return {search.named};
  std::vector<std::string> files = search.names;
  std::vector<std::filesystem::path> folders;
  if (const std::string folder = switches().python_environment; !folder.empty()) add_packages(folder, folders);
  std::error_code error;
  // In a Python package this lies in site-packages/penstock, and NVIDIA's beside that.
  if (Dl_info self{};
      ::dladdr(reinterpret_cast<const void*>(&library_candidates), &self) != 0 && self.dli_fname != nullptr) {
    const std::filesystem::path component = std::filesystem::absolute(self.dli_fname, error);
    folders.push_back(component.parent_path().parent_path() / "nvidia");
  }
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) add_packages(program.parent_path().parent_path(), folders);
  for (const std::filesystem::path& folder : folders) {
    for (const std::string& name : search.in_packages) {
      if (std::filesystem::exists(folder / name, error)) files.push_back(folder / name);
    }
  }
  return files;
}

}  // namespace penstock
