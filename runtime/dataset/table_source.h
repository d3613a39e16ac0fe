// A data set read through a table of its samples (sample_table.h): tar and MDS shards, TFRecord, CIFAR, MNIST, CSV,
// lists.
//
//   TableSource source(read_tar_shards(...), "/data/shards", limits, std::move(shards), files);
//   source.load({.seed = 1, .epoch = 0, .index = 17}, sample);
//
// Pictures are encoded bytes, or decoded ones (CIFAR, MNIST) that become rows of RGB here; fields are read from where
//   their places point.
// Verdicts: an image over limits.max_encoded_bytes is a bad sample. A shard that cannot be read, or is not of the size
//   that the table knows, is Error(runtime).
// Thread-safety, ownership and failure: as source.h says.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/config/job.h"
#include "runtime/dataset/sample_table.h"
#include "runtime/dataset/shard_files.h"
#include "runtime/dataset/source.h"

namespace penstock {

// Paths in a table are relative to `root` unless they begin with '/'.
std::string under_root(const std::string& root, std::string_view path);

// Whether pictures that are not encoded are within the limits; and one of them as rows of RGB.
Verdict check_pixels(const PixelFormat& pixels, const DecodeLimits& limits);
void pixels_to_rgb(const PixelFormat& pixels, std::span<const std::byte> stored, std::byte* rgb);

class TableSource final : public Source {
 public:
  // `files` must outlive the object.
  TableSource(SampleTable table, std::string root, const DecodeLimits& limits, std::shared_ptr<ShardFiles> shards,
              FileSystem& files);

  int64_t size() const override { return table_.size(); }
  const FieldTable& fields() const override { return fields_; }
  std::string key(int64_t index) const override;
  int64_t label(int64_t index) const override;
  bool labelled() const override { return table_.facts().labelled; }
  const std::vector<std::string>& class_names() const override { return table_.facts().classes; }
  int64_t encoded_size(int64_t index) const override;
  Verdict read(int64_t index, std::vector<std::byte>& bytes) const override;
  Verdict load(const DrawKey& key, SourceSample& sample) const override;
  void list_reads(int64_t index, std::vector<FilePart>& parts) const override;
  Sum128 fingerprint() const override { return table_.fingerprint(); }
  SourceBudget taken() const override { return {0, shards_->spooled_bytes()}; }

  const SampleTable& table() const noexcept { return table_; }

 private:
  void check_index(int64_t index) const;
  std::shared_ptr<const FileReader> shard(uint32_t file) const;
  void read_place(const FieldPlace& place, std::span<std::byte> into) const;

  SampleTable table_;
  std::string root_;
  DecodeLimits limits_;
  std::shared_ptr<ShardFiles> shards_;
  FileSystem& files_;
  std::vector<std::string> paths_;  // of the table's files, absolute
  FieldTable fields_;
  size_t shown_ = 0;  // of the table's columns, those in fields_
};

}  // namespace penstock
