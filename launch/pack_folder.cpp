#include "launch/pack_folder.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "runtime/base/error.h"

namespace penstock {
namespace {

namespace fs = std::filesystem;

bool lies_in(const fs::path& inner, const fs::path& outer) {
  const fs::path relative = inner.lexically_relative(outer);
  return !relative.empty() && *relative.begin() != "..";
}

void check_places(const PackInput& input, const std::string& folder) {
  const fs::path target = fs::weakly_canonical(folder);
  // Shards may have others beside them; of folders, everything in them is data.
  const bool folders = input.table().facts().kind == "folder" || input.table().facts().kind == "images";
  for (const std::string& root : input.roots()) {
    const fs::path source = fs::weakly_canonical(root);
    if (lies_in(source, target)) {
      refuse_pack_folder(folder, "the data set's folder '" + root + "' is that folder, or lies in it",
                         "pack to a folder beside it");
    }
    if (folders && lies_in(target, source)) {
      refuse_pack_folder(folder, "it would lie in the data set's folder '" + root + "', and be part of the data",
                         "pack to a folder beside it");
    }
  }
}

}  // namespace

void refuse_pack_folder(const std::string& folder, const std::string& why, const std::string& remedy) {
  throw Error(ErrorKind::usage, "cannot pack to '" + folder + "': " + why, remedy);
}

UniqueFd open_pack_folder(const PackInput& input, const std::string& folder) {
  check_places(input, folder);
  std::error_code code;
  fs::create_directories(folder, code);
  if (code) {
    throw FileError(code.value(), folder, "cannot create the folder '" + folder + "': " + code.message(),
                    "check the path and its permissions");
  }
  UniqueFd held(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!held) {
    const int number = errno;
    throw FileError(number, folder, "cannot open '" + folder + "': " + std::strerror(number));
  }
  if (::flock(held.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    refuse_pack_folder(folder, "another `penstock pack` writes to it", "wait for it, or name another folder");
  }
  return held;
}

}  // namespace penstock
