#include "runtime/base/library_search.h"

#include <dlfcn.h>

#include <filesystem>
#include <sstream>

#include "runtime/base/switches.h"

namespace penstock {
namespace {

namespace fs = std::filesystem;

// The folder of the library that this function is in; empty where it cannot be told.
fs::path folder_of_package() {
  Dl_info self{};
  if (::dladdr(reinterpret_cast<const void*>(&library_candidates), &self) == 0 || self.dli_fname == nullptr) return {};
  std::error_code error;
  // A program finds its library as PREFIX/bin/../lib.
  return fs::absolute(self.dli_fname, error).lexically_normal().parent_path();
}

// The folder above the program's own: PREFIX of PREFIX/bin/python3; empty where it cannot be told.
fs::path above_program() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  return error ? fs::path() : program.parent_path().parent_path();
}

// site-packages of the environment that `root` is, if it is one.
void add_packages(const fs::path& root, std::vector<fs::path>& folders) {
  std::error_code none;
  for (const auto& python : fs::directory_iterator(root / "lib", none)) {
    if (!python.path().filename().string().starts_with("python3")) continue;
    for (const char* const packages : {"site-packages", "dist-packages"}) {
      folders.push_back(python.path() / packages / "nvidia");
    }
  }
}

std::vector<fs::path> package_folders() {
  std::vector<fs::path> folders;
  if (const std::string root = switches().python_environment; !root.empty()) add_packages(root, folders);
  // In a Python package this lies in site-packages/penstock, and NVIDIA's beside that.
  if (const fs::path own = folder_of_package(); !own.empty()) folders.push_back(own.parent_path() / "nvidia");
  if (const fs::path root = above_program(); !root.empty()) add_packages(root, folders);
  return folders;
}

// What was said of this process: where libraries are, and which environment is active.
std::vector<fs::path> said_library_folders() {
  std::vector<fs::path> folders;
  std::istringstream said(switches().library_folders);
  for (std::string folder; std::getline(said, folder, ':');) {
    if (!folder.empty()) folders.emplace_back(folder);
  }
  if (const std::string root = switches().python_environment; !root.empty()) folders.push_back(fs::path(root) / "lib");
  return folders;
}

std::vector<fs::path> own_library_folders() {
  std::vector<fs::path> folders;
  // In a Python package this lies in ROOT/lib/python3.11/site-packages/penstock (or ROOT/lib64).
  const fs::path root = folder_of_package().parent_path().parent_path().parent_path().parent_path();
  if (!root.empty()) folders.push_back(root / "lib");
  if (const fs::path above = above_program(); !above.empty()) folders.push_back(above / "lib");
  return folders;
}

void add_existing(const std::vector<fs::path>& folders, const std::vector<std::string>& names,
                  std::vector<std::string>& files) {
  std::error_code error;
  for (const fs::path& folder : folders) {
    for (const std::string& name : names) {
      if (fs::exists(folder / name, error)) files.push_back(folder / name);
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
  std::vector<std::string> files;
  if (!search.in_environment.empty()) add_existing(said_library_folders(), search.in_environment, files);
  files.insert(files.end(), search.names.begin(), search.names.end());
  if (!search.in_environment.empty()) add_existing(own_library_folders(), search.in_environment, files);
  if (!search.in_packages.empty()) add_existing(package_folders(), search.in_packages, files);
  return files;
}

}  // namespace penstock
