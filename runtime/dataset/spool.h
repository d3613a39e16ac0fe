// A compressed file, decompressed into a file without a name, so that samples can be read from it in any order.
//
//   std::unique_ptr<FileReader> plain = decompress(*compressed, Codec::gzip, /*max_bytes=*/budget);
//
// gzip and zstd cannot be read from the middle, and a shuffled epoch reads from everywhere; decompressing a shard for
//   each sample, or keeping whole shards in memory, costs more than the disk does. So each process decompresses a
//   shard once, at its first use, to an unlinked file in TMPDIR (/var/tmp without it), which ends with the process however it ends.
// Bounds: `max_bytes` is checked while writing, so a bomb costs no more than the budget.
// Failure: Error(dataset) naming the file for what is no such stream or over the budget, FileError for the disk.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "runtime/base/file_system.h"
#include "runtime/dataset/sample_table.h"

namespace penstock {

// By the name's end: .gz and .tgz, .zst and .zstd. Not by the first bytes: a record of 35,615 bytes begins as gzip does.
Codec codec_named(std::string_view path);

std::unique_ptr<FileReader> decompress(const FileReader& file, Codec codec, uint64_t max_bytes);

}  // namespace penstock
