#include "launch/output_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>

#include "runtime/base/atomic_file.h"
#include "runtime/base/error.h"

namespace penstock {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw Error(ErrorKind::usage, "cannot write '" + path + "': " + why,
              "name a file in a folder that can be written to");
}

// Where a link leads.
fs::path target_of(const std::string& path) {
  std::error_code ignored;
  const fs::path real = fs::weakly_canonical(path, ignored);
  return ignored ? fs::path(path) : real;
}

}  // namespace

void check_output_file(const std::string& path) {
  if (path.empty()) refuse(path, "it has no name");
  const fs::path target = target_of(path);
  std::error_code ignored;
  if (fs::is_directory(target, ignored)) refuse(path, "it is a folder");
  if (fs::exists(target, ignored) && !fs::is_regular_file(target, ignored)) return;
  const fs::path folder = target.parent_path().empty() ? fs::path(".") : target.parent_path();
  if (::access(folder.c_str(), W_OK) != 0) refuse(path, std::strerror(errno));
}

void write_output_file(const std::string& path, const std::string& text) {
  const fs::path target = target_of(path);
  std::error_code ignored;
  if (fs::exists(target, ignored) && !fs::is_regular_file(target, ignored)) {
    std::ofstream file(target, std::ios::binary | std::ios::app);
    if (!(file << text << std::flush)) refuse(path, std::strerror(errno));
    return;
  }
  write_new_file(target.string(), std::as_bytes(std::span(text)));
}

}  // namespace penstock
