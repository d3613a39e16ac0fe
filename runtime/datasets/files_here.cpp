#include "runtime/datasets/files_here.h"

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "runtime/datasets/tabulated_source.h"

namespace penstock {
namespace {

std::string_view folder_part(std::string_view key) {
  const size_t slash = key.rfind('/');
  return slash == std::string_view::npos ? std::string_view() : key.substr(0, slash);
}

// Samples that are files of their own, asked for in order.
class OwnFiles {
 public:
  OwnFiles(const SampleTable& table, const std::string& root, FileSystem& files)
      : table_(table), root_(root), files_(files) {}

  bool has(int64_t index) {
    const std::string_view key = table_.key(index);
    const std::string_view folder = folder_part(key);
    if (!listed_ || folder != folder_) {
      if (!many_in(folder, index)) return is_here(under_root(root_, key), files_);
      list(folder);
    }
    return names_.contains(std::string(key.substr(folder.empty() ? 0 : folder.size() + 1)));
  }

 private:
  // Do enough samples of this folder follow that listing it costs less than asking for each?
  bool many_in(std::string_view folder, int64_t index) const {
    constexpr int64_t enough = 16;
    if (index + enough > table_.size()) return false;
    for (int64_t i = index; i < index + enough; ++i) {
      if (table_.row(i).file != kOwnFile || folder_part(table_.key(i)) != folder) return false;
    }
    return true;
  }
  void list(std::string_view folder) {
    folder_ = folder;
    listed_ = true;
    names_.clear();
    try {
      for (DirectoryEntry& entry : files_.list_directory(under_root(root_, folder)).entries) {
        if (!entry.is_directory) names_.insert(std::move(entry.name));
      }
    } catch (const FileError& error) {
      if (!is_missing(error)) throw;
    }
  }

  const SampleTable& table_;
  const std::string& root_;
  FileSystem& files_;
  bool listed_ = false;
  std::string folder_;
  std::unordered_set<std::string> names_;
};

}  // namespace

bool is_missing(const FileError& error) {
  return error.code() == ENOENT || error.code() == ENOTDIR;
}

bool is_here(const std::string& path, FileSystem& files) {
  try {
    (void)files.examine(path);
    return true;
  } catch (const FileError& error) {
    if (!is_missing(error)) throw;
    return false;
  }
}

ReadableSamples samples_here(const SampleTable& table, const std::string& root, FileSystem& files) {
  const std::vector<TableFile>& shards = table.facts().files;
  std::vector<bool> here(shards.size(), true);
  if (table.facts().kind != "folder") {  // there they are its folders
    for (size_t i = 0; i < shards.size(); ++i) here[i] = is_here(under_root(root, shards[i].path), files);
  }
  ReadableSamples out;
  std::string first;
  int64_t others = 0;
  const auto lacks = [&](const std::string& path) {
    if (first.empty()) {
      first = path;
    } else {
      ++others;
    }
  };
  for (size_t i = 0; i < shards.size(); ++i) {
    if (!here[i]) lacks(under_root(root, shards[i].path));
  }
  OwnFiles own(table, root, files);
  const size_t fields = table.facts().fields.size();
  for (int64_t i = 0; i < table.size(); ++i) {
    const uint32_t file = table.row(i).file;
    bool readable = true;
    if (file == kOwnFile) {
      readable = own.has(i);
      if (!readable) lacks(under_root(root, table.key(i)));
    } else {
      readable = here[file];
    }
    for (size_t f = 0; f < fields && readable; ++f) {
      const uint32_t place = table.place(f, i).file;
      readable = place == kInTable || here[place];
    }
    if (readable) out.ranges.add(i);
    if (out.ranges.count() > kMostRanges) {
      throw Error(ErrorKind::dataset,
                  "the files of '" + root + "' on this node are in more than " + std::to_string(kMostRanges) +
                      " places of the data set's order",
                  "place whole folders or shards on a node, not single files");
    }
  }
  if (!first.empty()) {
    out.lacking = "'" + first + "'";
    if (others > 0) out.lacking += " and " + std::to_string(others) + (others == 1 ? " other file" : " other files");
  }
  return out;
}

}  // namespace penstock
