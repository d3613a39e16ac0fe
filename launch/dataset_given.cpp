#include "launch/dataset_given.h"

#include <algorithm>
#include <filesystem>

#include "runtime/base/error.h"
#include "runtime/base/file_system.h"
#include "runtime/config/suggest.h"
#include "runtime/dataset/pack_format.h"
#include "runtime/dataset/split_folders.h"

namespace penstock {

void refuse_splits_as_classes(const std::string& folder) {
  const std::vector<std::string> names = splits_as_classes(folder);
  if (names.empty()) return;
  throw Error(ErrorKind::usage,
              "'" + folder + "' holds " + list_of(names, "and") +
                  ", which are splits with class folders of their own: they would be taken for classes",
              "name one of them, as in '" + folder + "/" + names.front() + "'");
}

std::vector<std::string> lost_classes(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code ignored;
  std::filesystem::directory_iterator entry(folder, ignored);
  for (; !ignored && entry != std::filesystem::directory_iterator(); entry.increment(ignored)) {
    std::string name = entry->path().filename().string();
    // Editors lock files by hidden links that lead nowhere.
    const bool lost = name[0] != '.' && entry->is_symlink(ignored) && !entry->exists(ignored);
    if (lost) names.push_back(std::move(name));
  }
  std::sort(names.begin(), names.end());
  return names;
}

DatasetSpec dataset_in(const std::string& given, std::string& line) {
  const std::string folder = std::filesystem::absolute(given).lexically_normal().string();
  DatasetSpec dataset;
  bool pack = false;
  bool mds = false;
  bool tar = false;
  bool parquet = false;
  for (const DirectoryEntry& entry : posix_file_system().list_directory(folder).entries) {
    pack = pack || entry.name == kPackIndex || entry.name == kPackState;
    mds = mds || entry.name == "index.json";
    tar = tar || (entry.name.ends_with(".tar") && !entry.is_directory);
    parquet = parquet || (entry.name.ends_with(".parquet") && !entry.is_directory);
  }
  if (pack) {
    dataset.pack = folder;
    line = "pack: " + folder;
  } else if (mds) {
    dataset.mds = folder;
    line = "mds: " + folder;
  } else if (tar) {
    dataset.tar = folder + "/*.tar";
    line = "tar: \"" + dataset.tar + "\"";
  } else if (parquet) {
    dataset.parquet = folder + "/*.parquet";
    line = "parquet: \"" + dataset.parquet + "\"";
  } else {
    refuse_splits_as_classes(folder);
    dataset.folder = folder;
    line = "folder: " + folder;
  }
  return dataset;
}

}  // namespace penstock
