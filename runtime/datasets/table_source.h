// A data set read through a table of its samples (sample_table.h): tar and MDS shards, TFRecord, CIFAR, MNIST, CSV,
// lists.
//
//   TableSource source(list_tar(input), "/data/shards", limits, std::move(shards), files);
//   source.load({.seed = 1, .epoch = 0, .index = 17}, sample);
//
// Pictures are encoded bytes, or decoded ones (CIFAR, MNIST) that become rows of RGB here; fields are read from where
//   their places point.
// Restart points are given only with the very bytes that they were made of: others are decoded as without an index.
// Statuses: an image over limits.max_encoded_bytes is a bad sample. A shard that cannot be read, or is not of the size
//   that the table knows, is Error(runtime). So is another picture than was listed in a TFRecord file: without an index
//   its checksums refuse a damaged one, and an index must not let it pass.
// Thread-safety, ownership and failure: as source.h says.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/datasets/sample_table.h"
#include "runtime/datasets/shard_files.h"
#include "runtime/datasets/source.h"
#include "runtime/datasets/tabulated_source.h"
#include "runtime/job/job.h"

namespace penstock {

// Whether pictures that are not encoded are within the limits; and one of them as rows of RGB.
SampleStatus check_pixels(const PixelFormat& pixels, const DecodeLimits& limits);
void pixels_to_rgb(const PixelFormat& pixels, std::span<const std::byte> stored, std::byte* rgb);

class TableSource final : public TabulatedSource {
 public:
  // `files` must outlive the object.
  TableSource(SampleTable table, std::string root, const DecodeLimits& limits, std::shared_ptr<ShardFiles> shards,
              FileSystem& files);

  SampleStatus read(int64_t index, std::vector<std::byte>& bytes) const override;
  SampleStatus load(const DrawKey& key, SourceSample& sample) const override;
  void list_reads(int64_t index, std::vector<FilePart>& parts) const override;
  SourceBudget taken() const override { return {0, shards_->spooled_bytes()}; }

 private:
  std::shared_ptr<const FileReader> shard(uint32_t file) const;
  void read_place(const FieldPlace& place, std::span<std::byte> into) const;

  std::string root_;
  std::shared_ptr<ShardFiles> shards_;
  FileSystem& files_;
  bool pictures_are_checked_;  // against SampleRow::check, where there is one
};

}  // namespace penstock
