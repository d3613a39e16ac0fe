// All folders below one, links followed: what class folders, pairs and indexes are listed with.
//
//   FolderWalk walk(files, "/data/train", "cat");
//   Directory directory;
//   while (walk.next(path, directory)) use(path, directory.entries);    // path: "cat", "cat/kittens", ...; or "" first
//
// A folder may be reached by several ways, as torchvision and os.walk have it, and then comes once for each. But a link
// to a folder above itself would never end, and folders that link to each other in a chain are reached by a number of
// ways that doubles with each: both are refused by name.
// Thread-safety: one thread. Failure: FileError as list_directory has it, path() being the folder's; Error(dataset) for
// links.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/file_system.h"

namespace penstock {

class FolderWalk {
 public:
  static constexpr int kMaxWays = 100;  // to one folder

  // From `first` below `root` on; empty: from root itself.
  FolderWalk(FileSystem& files, std::string root, std::string first);

  // False: there is no other. In no particular order, but a folder comes before those below it.
  bool next(std::string& path, Directory& directory);
  const std::string& path() const noexcept { return path_; }  // of the last, also where it failed

 private:
  struct Pending {
    std::string path;
    std::vector<DirectoryId> above;  // the folders on the way here
  };
  FileSystem& files_;
  std::string root_;
  std::string path_;
  std::vector<Pending> pending_;
  std::map<std::pair<uint64_t, uint64_t>, int> ways_;
};

}  // namespace penstock
