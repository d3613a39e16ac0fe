// The index of a data set: its table of samples in a file, made once by `penstock index`, read or mapped by everybody.
//
//   SampleTable table = index_table(dataset, limits, files, shards);  // looks through the data
//   write_index(table, "/data/train.index");        // in one step: readers see the old one or the new
//   SampleTable same = open_index(dataset, limits, files);  // dataset.index: maps it, compares it with the data
//
// What open_index compares, and refuses by name: the kind of data set, what of its description decides the content
//   (image, label, fields, train), the names of the files, and of each file the size and the time of its last change;
//   of class folders, the time of change of every folder. So a data set that was changed or replaced is noticed, and
//   one that was copied without its times has to be indexed again. Where records were too large to be looked into, the
//   limit has to be the same as well. Where each node has some of the files (dataset.local), only the sizes of those that
//   are there, because copying loses times.
// Cost: one stat a shard or folder, and one pass over the index, instead of reading headers or listing folders. Above
//   64 MiB it is mapped, read-only and shared: the ranks of a node have it in memory once. Such a one must not be
//   written to or cut while it is in use (a mapped file that is cut ends its readers with SIGBUS); write_index replaces
//   it in one step, and readers keep the old one.
// Trust: a file that somebody else made is checked as sample_table.h says before anything of it is used.
// Failure: Error(dataset) naming the index, with the command that makes it; FileError for the disk.
// Thread-safety: functions without state.
#pragma once

#include <string>

#include "runtime/datasets/sample_table.h"
#include "runtime/datasets/shard_files.h"
#include "runtime/job/job.h"

namespace penstock {

// The table of a data set in files, with nothing of images looked at; Error(usage) for one in Python.
SampleTable index_table(const DatasetSpec& dataset, const DecodeLimits& limits, FileSystem& files, ShardFiles& shards);

// Maps a file that holds a table and nothing else, read-only and shared. FileError, or what parse() says; without the
// file's name.
SampleTable map_table(const std::string& path, const std::string& remedy_if_missing, FileSystem& files);

void write_index(const SampleTable& table, const std::string& path);
SampleTable open_index(const DatasetSpec& dataset, const DecodeLimits& limits, FileSystem& files);

}  // namespace penstock
