#include "runtime/datasets/folder_walk.h"

#include <algorithm>

namespace penstock {

FolderWalk::FolderWalk(FileSystem& files, std::string root, std::string first)
    : files_(files), root_(std::move(root)), pending_({{std::move(first), {}}}) {}

bool FolderWalk::next(std::string& path, Directory& directory) {
  if (pending_.empty()) return false;
  Pending folder = std::move(pending_.back());
  pending_.pop_back();
  path_ = folder.path;
  const std::string whole = path_.empty() ? root_ : root_ + "/" + path_;
  directory = files_.list_directory(whole);
  if (std::find(folder.above.begin(), folder.above.end(), directory.id) != folder.above.end()) {
    throw Error(ErrorKind::dataset, "'" + whole + "' is a symbolic link to a folder above it", "remove the link");
  }
  if (++ways_[{directory.id.device, directory.id.inode}] > kMaxWays) {
    throw Error(
        ErrorKind::dataset,
        "'" + whole + "' is a folder that symbolic links lead to by more than " + std::to_string(kMaxWays) + " ways",
        "remove links between the data set's folders");
  }
  folder.above.push_back(directory.id);
  for (const DirectoryEntry& entry : directory.entries) {
    if (entry.is_directory) pending_.push_back({path_.empty() ? entry.name : path_ + "/" + entry.name, folder.above});
  }
  path = path_;
  return true;
}

}  // namespace penstock
