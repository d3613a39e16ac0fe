// The files that hold a data set's samples, opened when they are first needed, decompressed where they have to be.
//
//   ShardFiles shards(files, /*spool_bytes=*/16 << 30);
//   const std::shared_ptr<const FileReader> shard = shards.get("/data/000.tar", Codec::none);
//   shard->read_at(512, buffer);
//
// At most kMaxOpen plain files stay open, the others are opened again; decompressed ones stay, in one file, their sum
//   within spool_bytes. Whether a file is still the one that the table was made of is the reader's to compare: by its
//   size (table_source.cpp, pack_input.cpp) or a record's checksum (pack_source.h).
// Thread-safety: all functions, from any thread; a shard is decompressed by one while the others wait for it.
// Ownership: a reader stays valid while the caller holds it. Failure: FileError, Error(dataset), both with the path.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "runtime/base/file_system.h"
#include "runtime/base/thread_annotations.h"
#include "runtime/datasets/sample_table.h"
#include "runtime/datasets/spool.h"

namespace penstock {

class ShardFiles {
 public:
  static constexpr size_t kMaxOpen = 256;

  // `files` must outlive the object.
  ShardFiles(FileSystem& files, uint64_t spool_bytes) : files_(files), spool_(spool_bytes) {}

  std::shared_ptr<const FileReader> get(const std::string& path, Codec codec);

  int64_t spooled_bytes() const noexcept { return spooled_bytes_; }
  // Null where it is not open, or compressed. Never waits for a disk.
  std::shared_ptr<const FileReader> opened(const std::string& path);

  // For tables being made: opens the file, finds out by its name whether it is compressed, unless `codec` says so, and
  // says what a table notes of it.
  std::shared_ptr<const FileReader> survey(const std::string& path, TableFile& facts, std::optional<Codec> codec = {});

 private:
  FileSystem& files_;
  Mutex mutex_;
  std::map<std::string, std::shared_ptr<const FileReader>> plain_ PENSTOCK_GUARDED_BY(mutex_);
  // Decompressing takes long, and is done under a lock of its own: one shard after another.
  Mutex spool_mutex_;
  std::map<std::string, std::shared_ptr<const FileReader>> spooled_ PENSTOCK_GUARDED_BY(spool_mutex_);
  Spool spool_ PENSTOCK_GUARDED_BY(spool_mutex_);
  std::atomic<int64_t> spooled_bytes_ = 0;  // of spooled_
};

}  // namespace penstock
