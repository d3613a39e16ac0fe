#include "launch/dataset_given.h"

#include <filesystem>

#include "runtime/base/file_system.h"
#include "runtime/dataset/pack_format.h"

namespace penstock {

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
    dataset.folder = folder;
    line = "folder: " + folder;
  }
  return dataset;
}

}  // namespace penstock
