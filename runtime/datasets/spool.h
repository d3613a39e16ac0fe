// Compressed files, decompressed one after another into a file without a name, so that samples can be read from them in
// any order.
//
//   Spool spool(/*max_bytes=*/budget);
//   std::unique_ptr<FileReader> plain = spool.decompress(*compressed, Codec::gzip);
//
// gzip and zstd cannot be read from the middle, and a shuffled epoch reads from everywhere; decompressing a shard for
//   each sample, or keeping whole shards in memory, costs more than the disk does. So each process decompresses a
//   shard once, to an unlinked file in TMPDIR (/var/tmp without it), which ends with the process however it ends. One
//   file for all of them: data sets have more shards than a process may have open files.
// Bounds: `max_bytes` is checked while writing, so a bomb costs no more than the budget.
// Thread-safety: decompress() by one thread at a time; what it returns, by any. Ownership: readers keep the file.
// Failure: Error(dataset) naming the file for what is no such stream or over the budget, FileError for the disk.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "runtime/base/file_system.h"
#include "runtime/base/memory.h"
#include "runtime/datasets/sample_table.h"

namespace penstock {

// By the name's end: .gz and .tgz, .zst and .zstd. Not by the first bytes, which other formats may begin with as well;
// one that can tell looks at them (tfrecord.cpp).
Codec codec_named(std::string_view path);

class Spool {
 public:
  explicit Spool(uint64_t max_bytes) : left_(max_bytes) {}

  std::unique_ptr<FileReader> decompress(const FileReader& file, Codec codec);

 private:
  std::shared_ptr<const UniqueFd> fd_;  // opened when it is first needed
  uint64_t end_ = 0;                    // of what has been written
  uint64_t left_;                       // of the budget
};

}  // namespace penstock
