#include "runtime/datasets/split_folders.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "runtime/base/error.h"
#include "runtime/base/lower_case.h"
#include "runtime/datasets/image_folder.h"

namespace penstock {
namespace {

constexpr std::array<std::string_view, 8> kSplitNames = {"train", "training",   "val",  "valid",
                                                         "eval",  "validation", "test", "testing"};

bool is_split_name(const std::string& name) {
  return std::find(kSplitNames.begin(), kSplitNames.end(), lower_case(name)) != kSplitNames.end();
}

bool holds_folders_alone(const std::string& folder, FileSystem& files) {
  const std::vector<DirectoryEntry> entries = files.list_directory(folder).entries;
  return std::any_of(entries.begin(), entries.end(), [](const DirectoryEntry& entry) { return entry.is_directory; }) &&
         std::none_of(entries.begin(), entries.end(), [](const DirectoryEntry& entry) {
           return !entry.is_directory && has_image_extension(entry.name);
         });
}

}  // namespace

std::vector<std::string> splits_as_classes(const std::string& folder, FileSystem& files) {
  std::vector<std::string> names;
  try {
    for (DirectoryEntry& entry : files.list_directory(folder).entries) {
      if (!entry.is_directory) continue;
      if (!is_split_name(entry.name) || !holds_folders_alone(folder + "/" + entry.name, files)) return {};
      names.push_back(std::move(entry.name));
    }
  } catch (const FileError&) {
    return {};
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace penstock
