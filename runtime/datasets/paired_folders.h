// Two or three folders of pictures that belong together by their relative names: an image and its target (what a
// network should make of it), an image and its mask of class ids, or all three.
//
//   DatasetSpec spec;
//   spec.images = "street/photos";
//   spec.masks = "street/classes";                     // street/photos/a/1.jpg has street/classes/a/1.png
//   PairedFolders pairs(spec, /*max_encoded_bytes=*/256 << 20);
//   pairs.fields();                                    // image, label (always 0), mask
//
// Samples are the pictures of `images`, at any depth, in Python's order of their relative paths (image_folder.h). The
//   partner of a picture has its relative path, or that with another extension of a picture; where there is none, one
//   whose path differs in small and large letters alone (IMG_1.JPG and img_1.png). Every picture needs one; partners
//   without a picture are left alone.
// Thread-safety and failure: as source.h says. Opening also throws Error(dataset) where a partner is missing or where
//   there are several.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/datasets/source.h"

namespace penstock {

class PairedFolders final : public Source {
 public:
  // `files` must outlive the object.
  PairedFolders(const DatasetSpec& dataset, int64_t max_encoded_bytes, FileSystem& files = posix_file_system());

  int64_t size() const override { return static_cast<int64_t>(folders_.front().names.size()); }
  const FieldTable& fields() const override { return fields_; }
  std::string key(int64_t index) const override;
  int64_t label(int64_t index) const override;
  bool labelled() const override { return false; }
  const std::vector<std::string>& class_names() const override { return classes_; }
  int64_t encoded_size(int64_t index) const override;
  SampleStatus read(int64_t index, std::vector<std::byte>& bytes) const override;
  SampleStatus load(const DrawKey& key, SourceSample& sample) const override;
  void list_reads(int64_t index, std::vector<FilePart>& parts) const override;
  Sum128 fingerprint() const override { return fingerprint_; }

  // The folder of the image (0) or of a partner, in the order of fields(): its root, and a sample's name relative to
  // it.
  size_t folders() const noexcept { return folders_.size(); }
  const std::string& root(size_t folder) const { return folders_.at(folder).root; }
  const std::string& name(size_t folder, int64_t index) const {
    return folders_.at(folder).names.at(static_cast<size_t>(index));
  }

 private:
  struct Folder {
    std::string root;
    std::vector<std::string> names;  // of each sample, relative to root
  };

  static std::vector<std::string> list(const std::string& root, FileSystem& files);
  void add_partners(const std::string& root, const char* field);
  void check_index(int64_t index) const;
  SampleStatus read_file(const Folder& folder, int64_t index, std::vector<std::byte>& bytes) const;

  int64_t max_encoded_bytes_;
  FileSystem& files_;
  FieldTable fields_;
  std::vector<std::string> classes_;  // none
  std::vector<Folder> folders_;       // the images, then their partners in the order of fields()
  Sum128 fingerprint_;
  std::unique_ptr<std::atomic<int64_t>[]> sizes_;  // of all of a sample's files; -1: not asked yet
};

}  // namespace penstock
