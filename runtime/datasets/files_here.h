// Which samples of a listed data set are on this node's disks: dataset.local, where each node has some of the files.
//
//   ReadableSamples here = samples_here(table, "/data/shards", files);
//   source->only(std::move(here));
//
// A sample is here where all files that it lies in are: shards, or for one that is a file of its own that file. Their
//   sizes are compared with the table where it knows them (index_file.h, pack_format.h), their contents are not looked at.
// Cost: one stat a shard; of files of their own one listing for each folder whose samples follow each other, otherwise a
//   stat each. And one pass over the table.
// Thread-safety: a function without state. Failure: FileError for a disk that cannot say; Error(dataset) where files are
//   spread so finely that it takes more than kMostRanges to say which are here.
#pragma once

#include <cstddef>
#include <string>

#include "runtime/datasets/sample_table.h"
#include "runtime/datasets/source.h"

namespace penstock {

// 16 MB to send, and to keep for each node at the coordinator.
inline constexpr size_t kMostRanges = size_t{1} << 20;

bool is_missing(const FileError& error);
bool is_here(const std::string& path, FileSystem& files);
ReadableSamples samples_here(const SampleTable& table, const std::string& root, FileSystem& files);

}  // namespace penstock
