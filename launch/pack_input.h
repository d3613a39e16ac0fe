// A data set as it is packed: its table, the bytes of each sample as they are stored, and what tells that it changed.
//
//   PackInput input(dataset, limits, spool_bytes);
//   StoredSample sample;
//   input.read(17, sample);                     // any thread
//   Json source = input.description();          // for pack.state: kept, and compared by difference()
//
// Samples are read without being judged: one that is too large or cannot be decoded is packed as it is, so that a job
//   says of the pack what it would say of the source.
// Thread-safety: read() and stamp() from any thread; the others from one.
// Failure: Error(usage) for data sets that cannot be packed, FileError and Error(dataset) as sources have them.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "runtime/datasets/pack_format.h"
#include "runtime/datasets/pack_source.h"
#include "runtime/datasets/paired_folders.h"
#include "runtime/datasets/sample_table.h"
#include "runtime/datasets/shard_files.h"
#include "runtime/job/job.h"

namespace penstock {

struct StoredSample {
  std::vector<std::byte> image;
  std::vector<std::vector<std::byte>> fields;  // one for each of the table's; empty where in_table says so
};

class PackInput {
 public:
  // `packs`: a pack is taken, too; its records' checksums are compared when they are read.
  PackInput(const DatasetSpec& dataset, const DecodeLimits& limits, uint64_t spool_bytes, bool packs = false);

  // Keys, labels, classes, fields and values in the table itself are what the pack has; places are the source's.
  const SampleTable& table() const noexcept { return *table_; }
  int64_t size() const noexcept { return table_->size(); }
  // The table's columns that belong to the data; the others are written anew.
  size_t fields() const noexcept { return fields_; }
  bool in_table(size_t field, int64_t index) const {
    return pairs_ == nullptr && table_->place(field, index).file == kInTable;
  }
  std::string title() const { return dataset_.title(); }

  void read(int64_t index, StoredSample& sample) const;

  // Sizes and times of change of files that are this sample's alone, appended; nothing for samples in shards.
  void stamp(int64_t index, std::vector<uint64_t>& out) const;
  // Names of the files of further pictures.
  std::vector<std::string> partners(int64_t index) const;

  nlohmann::json description() const;
  // What differs between two descriptions, in words; empty: nothing.
  static std::string difference(const nlohmann::json& then, const nlohmann::json& now);
  // What of the source changed since this object was made; empty: nothing that its folders and shards tell.
  std::string changed() const;

  // Folders that the data is in.
  std::vector<std::string> roots() const;

 private:
  std::string path_of(int64_t index) const;
  void read_part(uint32_t file, uint64_t offset, std::span<std::byte> into) const;

  DatasetSpec dataset_;
  std::string root_;
  std::shared_ptr<ShardFiles> shards_;
  std::unique_ptr<PairedFolders> pairs_;
  std::unique_ptr<PackSource> pack_;
  std::unique_ptr<const SampleTable> table_;
  size_t fields_ = 0;
};

}  // namespace penstock
