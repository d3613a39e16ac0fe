// A data set read from a pack (pack_format.h).
//
//   std::unique_ptr<Source> source = open_pack("/data/train.pack", limits, files);
//   source->load({.seed = 1, .epoch = 0, .index = 17}, sample);
//
// One read a sample: a record has picture, fields and restart points one after the other. Its checksum is compared
//   every time: a record that is not as it was written is trouble of the disk, FileError, and never a picture that
//   cannot be decoded; the job hears of the disk before it trains on it.
// Samples that were unusable when they were packed are in it as they were: statuses are the source's.
// Keys, labels, fields, classes and order are those of the data set that was packed, and so is, but for pairs of
//   folders, the fingerprint.
// Thread-safety, ownership and failure: as source.h says.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/datasets/pack_format.h"
#include "runtime/datasets/shard_files.h"
#include "runtime/datasets/source.h"
#include "runtime/datasets/tabulated_source.h"
#include "runtime/job/job.h"

namespace penstock {

class PackSource final : public TabulatedSource {
 public:
  // `table`: one that check_pack() has taken. `files` must outlive the object.
  PackSource(SampleTable table, const std::string& folder, const DecodeLimits& limits, FileSystem& files);

  SampleStatus read(int64_t index, std::vector<std::byte>& bytes) const override;
  SampleStatus load(const DrawKey& key, SourceSample& sample) const override;
  void list_reads(int64_t index, std::vector<FilePart>& parts) const override;

  // The whole record, at the beginning of `bytes`, which has `padding` bytes more. Its size. Whatever the limits are.
  uint64_t read_record(int64_t index, std::vector<std::byte>& bytes, size_t padding) const;

 private:
  SampleStatus check_sizes(int64_t index) const;

  mutable ShardFiles shards_;
};

// `local`: shards that are not there are another node's.
std::unique_ptr<Source> open_pack(const std::string& folder, const DecodeLimits& limits, FileSystem& files,
                                  bool local = false);

}  // namespace penstock
