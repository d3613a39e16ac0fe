// Writing a pack (../runtime/datasets/PACK.md): samples made by several threads, written by one, shard by shard.
//
//   PackInput input(dataset, limits, spool_bytes);
//   const PackResult result = write_pack(input, options);
//   result.finished;          // false: options.go_on said stop; the same call goes on from there
//
// Determinism: the same source and options give the same bytes for any number of threads, broken off or not. Samples
//   are written in the source's order, and a shard ends where the next record would make it larger than asked.
// Breaking off: every file appears under its name when it is whole and on the disk (atomic_file.h). pack.state says
//   which shards are, and what they were made of; pack.index is written last, and pack.state goes with it. A run that
//   finds a pack.state checks all that, reads those shards from end to end (a machine that lost its power may have left
//   zeros in them), and makes the rest. One at a time: the folder is locked meanwhile.
// Memory: at most 256 MiB of made samples wait to be written (pack_makers.h), and `threads` are being made.
// Failure: Error(usage) for a folder that holds something else, a finished pack, a pack of another source or options;
//   Error(dataset) for a source that changed; FileError for disks, with the path. What is finished stays for
//   the next run.
// Thread-safety: one caller per folder. Uses threads of its own and joins them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "launch/pack_input.h"
#include "launch/pack_samples.h"

namespace penstock {

struct PackProgress {
  bool checking = false;  // what an earlier run has written; nothing is written yet
  int64_t samples = 0;    // checked so far; or written, or found written
  int64_t total = 0;
  uint64_t bytes = 0;  // read by the check; or written by this run
  size_t shards = 0;   // whole ones, as far as is known
};

struct PackOptions {
  std::string folder;
  uint64_t shard_bytes = uint64_t{1} << 30;
  PackContent content;
  DecodeLimits limits;
  int threads = 0;  // 0: one per core
  // Asked several times a second, by the calling thread; false: stop.
  std::function<bool(const PackProgress&)> go_on{};
};

struct PackResult {
  bool finished = false;
  int64_t samples = 0;
  int64_t found = 0;  // of them, those that an earlier run had written
  size_t shards = 0;
  uint64_t bytes = 0;         // of the whole pack
  uint64_t source_bytes = 0;  // of what this run read
  int64_t rewritten = 0;
  int64_t entered = 0;                 // pictures with restart points
  std::map<int64_t, std::string> bad;  // index: why it cannot be used
  std::string again;                   // a finished shard that was damaged or missing, and so was made again
};

PackResult write_pack(const PackInput& input, const PackOptions& options);

}  // namespace penstock
