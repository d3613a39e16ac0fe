// Samples kept in memory once they were read, up to a budget: loader.cache_gb.
//
//   CachedSource source(std::move(disk), files, /*budget_bytes=*/8 << 30);
//   source.load(key, sample);      // the first time from the disk; sample.image then points into the cache
//
// Kept are the bytes as they are stored, so every epoch still draws and decodes anew. What does not fit any more is
//   read from the disk each time: a shuffled epoch meets every sample equally often, so no choice of what to drop would
//   find more of them. Bad samples are not kept.
// A sample that is a file of its own may be written over in place, and loaders that have not read it yet would give the
//   new one. So its size and time of change are looked at each time, and one that changed is read from the disk.
// Only for sources whose samples do not depend on the draw (all but those in Python).
// Thread-safety: as source.h says; a sample that two threads read at once is kept once.
// Ownership: owns the source below, not the file system that this reads through; what it gave stays valid until it ends.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/datasets/source.h"

namespace penstock {

class CachedSource final : public Source {
 public:
  CachedSource(std::unique_ptr<Source> source, FileSystem& files, int64_t budget_bytes);
  ~CachedSource() override;

  int64_t size() const override { return source_->size(); }
  ReadableSamples readable() const override { return source_->readable(); }
  const FieldTable& fields() const override { return source_->fields(); }
  std::string key(int64_t index) const override { return source_->key(index); }
  int64_t label(int64_t index) const override { return source_->label(index); }
  bool labelled() const override { return source_->labelled(); }
  const std::vector<std::string>& class_names() const override { return source_->class_names(); }
  int64_t encoded_size(int64_t index) const override { return source_->encoded_size(index); }
  int64_t known_size(int64_t index) const override { return source_->known_size(index); }
  SampleStatus read(int64_t index, std::vector<std::byte>& bytes) const override { return source_->read(index, bytes); }
  SampleStatus load(const DrawKey& key, SourceSample& sample) const override;
  void list_reads(int64_t index, std::vector<FilePart>& parts) const override;
  Sum128 fingerprint() const override { return source_->fingerprint(); }
  SourceBudget taken() const override { return {taken_, source_->taken().spool_bytes}; }

  int64_t kept() const noexcept { return kept_; }
  int64_t kept_bytes() const noexcept { return taken_; }

 private:
  struct Entry;
  // Size and time of the sample's files, where it has files of its own; empty for a sample in a shard.
  std::vector<FileFacts> facts(int64_t index) const;
  const Entry* current(int64_t index) const;

  std::unique_ptr<Source> source_;
  FileSystem& files_;
  int64_t budget_;
  mutable std::atomic<int64_t> taken_{0};
  mutable std::atomic<int64_t> kept_{0};
  // Null, or a whole sample: the release that publishes it pairs with the acquire of whoever finds it.
  mutable std::unique_ptr<std::atomic<Entry*>[]> entries_;
};

}  // namespace penstock
