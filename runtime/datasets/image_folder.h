// Class folders of images, listed and ordered exactly as torchvision's ImageFolder does.
//
//   ImageFolder folder("imagenet/train", /*max_encoded_bytes=*/256 << 20);
//   folder.key(0);            // "n01440764/n01440764_10026.JPEG"
//   folder.label(0);          // 0
//   folder.class_names()[0];  // "n01440764"
//
// Order: classes are the subfolders' names, sorted; within a class every folder below it (links followed) in the order
//   of its path, and within each its files by name. "Sorted" is Python's order of str: by code point, bytes that are no
//   UTF-8 counting as U+DC80 + (byte - 0x80). Note that paths are compared as text: "a" < "a-b" < "a/b".
// A sample is whatever is not a folder and ends in one of torchvision's IMG_EXTENSIONS, in any case; ".jpg" alone is one too.
// A part of it (FolderPart): of each class the pictures whose hash of seed and key is least are for validation, as many as the
//   share says, rounded; at least one is left for training. So the parts have the same classes, no picture in common, and
//   are the same wherever the folder stands. 24 bytes more for each file of the class that is being taken apart.
// Where it differs: torchvision skips a subfolder that it may not list, and walks a loop of links until the system
//   stops it. Both would change the data set without a word, so both are an Error here.
// Cost: one listing per folder, up to eight at a time to hide the latency of network disks; no stat per file. Memory:
//   kListedFileBytes for a name of 20 characters, at the peak as after it. An index (index_file.h) has four fifths more of
//   it, once for all processes of a node.
// Thread-safety and failure: as source.h says.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/datasets/source.h"

namespace penstock {

// Measured: names, where they end, folder and size, and what malloc keeps of the listing.
inline constexpr int64_t kListedFileBytes = 65;

// ".jpg", ".jpeg", …: torchvision's IMG_EXTENSIONS.
bool has_image_extension(std::string_view name);

// a < b as Python orders the two names (os.fsdecode of them).
bool python_less(std::string_view a, std::string_view b);

// The fingerprint of class folders: hash128 of, for each class in order, "name NUL count NUL hash NEWLINE", hash being
// that of its keys with a NUL after each. Hashing by class keeps the text short; NUL cannot be part of a name.
class FolderFingerprint {
 public:
  void add(std::string_view name, int64_t count, std::string_view keys);
  Sum128 sum() const { return hash128(std::string_view(summary_)); }

 private:
  std::string summary_ = "penstock image folder 1\n";
};

struct FolderPart {
  double val_share = 0;  // 0: the whole folder
  int64_t seed = 0;
  bool train = true;
};

FolderPart part_of(const DatasetSpec& dataset);

class ImageFolder final : public Source {
 public:
  // `files` must outlive the object.
  ImageFolder(std::string folder, int64_t max_encoded_bytes, FileSystem& files = posix_file_system(),
              const FolderPart& part = {});

  int64_t size() const override { return static_cast<int64_t>(folder_of_.size()); }
  const FieldTable& fields() const override { return fields_; }
  std::string key(int64_t index) const override;
  int64_t label(int64_t index) const override;
  const std::vector<std::string>& class_names() const override { return classes_; }
  int64_t encoded_size(int64_t index) const override;
  SampleStatus read(int64_t index, std::vector<std::byte>& bytes) const override;
  void list_reads(int64_t index, std::vector<FilePart>& parts) const override;
  Sum128 fingerprint() const override { return fingerprint_; }

  std::string path(int64_t index) const { return root_ + "/" + key(index); }

 private:
  struct Folder {
    std::string path;  // relative to root_, starting with the class
    int64_t label = 0;
  };
  struct ClassListing;

  static ClassListing list_class(const std::string& root, const std::string& name, FileSystem& files);
  std::vector<ClassListing> list_classes();
  static void keep_part(ClassListing& listing, const FolderPart& part);
  void find_classes();
  void add(const ClassListing& listing, int64_t label);
  void check_index(int64_t index) const;

  std::string root_;
  int64_t max_encoded_bytes_;
  FileSystem& files_;
  FieldTable fields_;
  std::vector<std::string> classes_;
  std::vector<Folder> folders_;
  std::vector<uint32_t> folder_of_;  // of each sample
  std::vector<uint64_t> name_end_;   // of each sample, in names_; it starts where its predecessor ends
  std::string names_;
  Sum128 fingerprint_;
  // Sizes seen so far, -1 for not yet: encoded_size() is no reason to stat a million files at the start.
  std::unique_ptr<std::atomic<int64_t>[]> sizes_;
};

}  // namespace penstock
