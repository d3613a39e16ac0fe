#include "launch/dataset_given.h"

#include <algorithm>
#include <filesystem>
#include <string_view>

#include "launch/init_job.h"
#include "runtime/base/error.h"
#include "runtime/base/file_system.h"
#include "runtime/base/utf8.h"
#include "runtime/datasets/pack_format.h"
#include "runtime/datasets/split_folders.h"
#include "runtime/job/suggest.h"

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

std::string yaml_path(const std::string& path) {
  const auto plain = [](unsigned char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("/._-+").find(static_cast<char>(c)) != std::string_view::npos || c >= 0x80;
  };
  if (std::all_of(path.begin(), path.end(), plain)) return path;
  // No job file can hold other bytes; whoever has such names reads them here at least.
  return first_not_utf8(path) < path.size() ? without_controls(path) : yaml_quoted(path);
}

void refuse_missing(const std::string& given, const std::string& one, const std::string& other) {
  std::error_code code;
  const bool there = !given.empty() && std::filesystem::exists(given, code);
  if (there || code) return;  // whoever opens it says why it cannot be read
  throw Error(ErrorKind::config,
              "'" + given + "' is neither " + one + " nor " + other + ": there is nothing of that name",
              "`penstock init --data DIR > job.yaml` writes a job file");
}

namespace {

// A pattern that matches all shards in the folder.
std::string pattern_in(const std::string& folder, const char* files) {
  if (folder.find_first_of("{}*?") != std::string::npos) {
    throw Error(
        ErrorKind::usage,
        "'" + folder + "' has one of the characters { } * ? in its path, which mean something in patterns of shards",
        "name the folder by a link without them");
  }
  return folder + "/" + files;
}

}  // namespace

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
    line = "pack: " + yaml_path(folder);
  } else if (mds) {
    dataset.mds = folder;
    line = "mds: " + yaml_path(folder);
  } else if (tar) {
    dataset.tar = pattern_in(folder, "*.tar");
    line = "tar: " + yaml_path(dataset.tar);
  } else if (parquet) {
    dataset.parquet = pattern_in(folder, "*.parquet");
    line = "parquet: " + yaml_path(dataset.parquet);
  } else {
    refuse_splits_as_classes(folder);
    dataset.folder = folder;
    line = "folder: " + yaml_path(folder);
  }
  return dataset;
}

}  // namespace penstock
