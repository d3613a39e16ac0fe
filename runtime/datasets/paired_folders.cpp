#include "runtime/datasets/paired_folders.h"

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "runtime/base/lower_case.h"
#include "runtime/datasets/folder_walk.h"
#include "runtime/datasets/image_folder.h"
#include "runtime/job/job.h"

namespace penstock {
namespace {

// "a/b" of "a/b.png".
std::string_view without_extension(std::string_view name) {
  return name.substr(0, name.rfind('.'));
}

// The pictures of a folder by their names without extension.
class ByName {
 public:
  using Names = std::vector<const std::string*>;

  explicit ByName(const std::vector<std::string>& there) : there_(there) {
    for (const std::string& name : there) by_name_[without_extension(name)].push_back(&name);
  }

  // Those of `image`'s name; where there is none, those whose names differ from it in small and large letters alone.
  const Names& of(const std::string& image) {
    const std::string_view name = without_extension(image);
    if (const auto found = by_name_.find(name); found != by_name_.end()) return found->second;
    if (in_small_letters_.empty()) {
      for (const std::string& one : there_) in_small_letters_[lower_case(without_extension(one))].push_back(&one);
    }
    const auto found = in_small_letters_.find(lower_case(name));
    return found == in_small_letters_.end() ? none_ : found->second;
  }

 private:
  const std::vector<std::string>& there_;
  std::unordered_map<std::string_view, Names> by_name_;
  std::unordered_map<std::string, Names> in_small_letters_;  // when somebody asks
  Names none_;
};

// The one with the image's full name, or with that but for small and large letters; null: neither, or several.
const std::string* same_name(const ByName::Names& candidates, const std::string& image) {
  const auto is_same = [&](const std::string* candidate) { return *candidate == image; };
  const auto same = std::find_if(candidates.begin(), candidates.end(), is_same);
  if (same != candidates.end()) return *same;
  const auto is_alike = [wanted = lower_case(image)](const std::string* candidate) {
    return lower_case(*candidate) == wanted;
  };
  const auto alike = std::find_if(candidates.begin(), candidates.end(), is_alike);
  return std::count_if(candidates.begin(), candidates.end(), is_alike) == 1 ? *alike : nullptr;
}

}  // namespace

std::vector<std::string> PairedFolders::list(const std::string& root, FileSystem& files) {
  std::vector<std::string> names;
  FolderWalk walk(files, root, "");
  const auto next = [&](std::string& path, Directory& directory) {
    try {
      return walk.next(path, directory);
    } catch (const FileError& error) {
      if (walk.path().empty() && (error.code() == ENOENT || error.code() == ENOTDIR)) {
        throw Error(ErrorKind::dataset,
                    "the dataset folder '" + root + (error.code() == ENOENT ? "' does not exist" : "' is a file"),
                    "check dataset.images, targets and masks; in a job file a relative path starts at the file's own "
                    "folder");
      }
      throw Error(ErrorKind::dataset, error.message(),
                  "every folder of the data set must be readable: leaving one out would change the data set");
    }
  };
  std::string path;
  Directory directory;
  while (next(path, directory)) {
    for (const DirectoryEntry& entry : directory.entries) {
      if (!entry.is_directory && has_image_extension(entry.name)) {
        names.push_back(path.empty() ? entry.name : path + "/" + entry.name);
      }
    }
  }
  std::sort(names.begin(), names.end(), python_less);
  return names;
}

void PairedFolders::add_partners(const std::string& root, const char* field) {
  const std::vector<std::string> there = list(root, files_);
  ByName by_name(there);
  Folder folder{root, {}};
  const std::vector<std::string>& images = folders_.front().names;
  std::unordered_map<std::string_view, std::string_view> taken;  // partner to image
  std::string missing;
  int64_t count = 0;
  for (const std::string& image : images) {
    const ByName::Names& candidates = by_name.of(image);
    if (candidates.empty()) {
      if (++count <= 3) missing += (missing.empty() ? "'" : ", '") + image + "'";
      continue;
    }
    const std::string* const same = same_name(candidates, image);
    if (same == nullptr && candidates.size() > 1) {
      throw Error(ErrorKind::dataset,
                  "'" + image + "' has two " + field + "s in '" + root + "': '" + *candidates[0] + "' and '" +
                      *candidates[1] + "'",
                  "remove one");
    }
    const std::string& partner = same == nullptr ? *candidates.front() : *same;
    if (const auto [first, fresh] = taken.emplace(partner, image); !fresh) {
      throw Error(ErrorKind::dataset,
                  "'" + std::string(first->second) + "' and '" + image + "' share one " + field + " in '" + root +
                      "': '" + partner + "'",
                  std::string("remove one of the two images, or give each a ") + field + " with its own full name");
    }
    folder.names.push_back(partner);
  }
  if (count > 0) {
    throw Error(ErrorKind::dataset,
                std::to_string(count) + " of the " + std::to_string(images.size()) + " images have no " + field +
                    " in '" + root + "': " + missing + (count > 3 ? ", ..." : ""),
                std::string("a ") + field + " has its image's relative name, with any extension of a picture");
  }
  folders_.push_back(std::move(folder));
}

PairedFolders::PairedFolders(const DatasetSpec& dataset, int64_t max_encoded_bytes, FileSystem& files)
    : max_encoded_bytes_(max_encoded_bytes),
      files_(files),
      fields_({{"image", FieldKind::image, DType::uint8, {}}, {"label", FieldKind::tensor, DType::int64, {}}}) {
  folders_.push_back({dataset.images, list(dataset.images, files)});
  if (size() == 0) {
    throw Error(ErrorKind::dataset, "the dataset folder '" + dataset.images + "' holds no image",
                "dataset.images names the folder of the pictures, at any depth");
  }
  if (!dataset.masks.empty()) {
    add_partners(dataset.masks, "mask");
    fields_.push_back({"mask", FieldKind::mask, DType::uint8, {}});
  }
  if (!dataset.targets.empty()) {
    add_partners(dataset.targets, "target");
    fields_.push_back({"target", FieldKind::image, DType::uint8, {}});
  }

  // hash128 over blocks of "name NUL ... NEWLINE", each replaced by its hash, so that the text stays short.
  constexpr size_t kBlock = size_t{1} << 20;
  std::string summary = "penstock paired folders 1\n";
  for (const FieldSpec& field : fields_) (summary += field.name) += '\n';
  std::string block;
  for (size_t i = 0; i < folders_.front().names.size(); ++i) {
    for (const Folder& folder : folders_) (block += folder.names[i]) += '\0';
    block += '\n';
    if (block.size() < kBlock && i + 1 < folders_.front().names.size()) continue;
    (summary += hash128(std::string_view(block)).hex()) += '\n';
    block.clear();
  }
  fingerprint_ = hash128(std::string_view(summary));
  sizes_ = std::make_unique<std::atomic<int64_t>[]>(folders_.front().names.size());
  for (int64_t i = 0; i < size(); ++i) sizes_[static_cast<size_t>(i)].store(-1, std::memory_order_relaxed);
}

void PairedFolders::check_index(int64_t index) const {
  if (index < 0 || index >= size()) {
    throw Error(ErrorKind::usage, "sample " + std::to_string(index) + " is outside the data set '" +
                                      folders_.front().root + "' of " + std::to_string(size()) + " samples");
  }
}

std::string PairedFolders::key(int64_t index) const {
  check_index(index);
  return folders_.front().names[static_cast<size_t>(index)];
}

int64_t PairedFolders::label(int64_t index) const {
  check_index(index);
  return 0;
}

int64_t PairedFolders::encoded_size(int64_t index) const {
  check_index(index);
  std::atomic<int64_t>& known = sizes_[static_cast<size_t>(index)];
  int64_t bytes = known.load(std::memory_order_relaxed);
  if (bytes < 0) {
    bytes = 0;
    for (const Folder& folder : folders_) {
      bytes += files_.file_size(folder.root + "/" + folder.names[static_cast<size_t>(index)]);
    }
    known.store(bytes, std::memory_order_relaxed);
  }
  return bytes;
}

SampleStatus PairedFolders::read_file(const Folder& folder, int64_t index, std::vector<std::byte>& bytes) const {
  check_index(index);
  const std::string& name = folder.names[static_cast<size_t>(index)];
  if (files_.read_file(folder.root + "/" + name, max_encoded_bytes_, bytes)) return SampleStatus::good();
  return SampleStatus::bad("the file '" + name + "' is larger than limits.max_encoded_bytes (" +
                           std::to_string(max_encoded_bytes_) + " bytes)");
}

SampleStatus PairedFolders::read(int64_t index, std::vector<std::byte>& bytes) const {
  return read_file(folders_.front(), index, bytes);
}

SampleStatus PairedFolders::load(const DrawKey& key, SourceSample& sample) const {
  const auto index = static_cast<int64_t>(key.index);
  sample.reset(0);
  sample.parts.resize(folders_.size() - 1);
  if (SampleStatus status = read(index, sample.storage); !status.ok()) return status;
  sample.image = sample.storage;
  for (size_t i = 1; i < folders_.size(); ++i) {
    if (SampleStatus status = read_file(folders_[i], index, sample.parts[i - 1]); !status.ok()) return status;
    sample.fields.emplace_back(sample.parts[i - 1]);
  }
  return SampleStatus::good();
}

void PairedFolders::list_reads(int64_t index, std::vector<FilePart>& parts) const {
  if (index < 0 || index >= size()) return;
  for (const Folder& folder : folders_) {
    FilePart& part = parts.emplace_back();
    part.path = folder.root + "/" + folder.names[static_cast<size_t>(index)];
    part.max_bytes = max_encoded_bytes_;
  }
}

}  // namespace penstock
