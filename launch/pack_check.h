// A pack, read from its first byte to its last: what `penstock check DIR` does.
//
//   const PackFindings found = check_whole_pack("train.pack", go_on);
//   for (const std::string& one : found.damaged) ...
//
// Opening has compared index, sizes and trailers already; here come the shards' headers and own tables, which must say
// what the index says, every record's checksum, and the zeros between records.
// Failure: Error(dataset) and FileError as opening has them. Thread-safety: a function without state.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace penstock {

struct PackFindings {
  bool finished = false;  // false: go_on said stop
  int64_t samples = 0;
  size_t shards = 0;
  uint64_t bytes = 0;
  int64_t rewritten = 0;
  std::vector<std::string> damaged;
  std::vector<std::string> bad;  // unusable when they were packed
};

PackFindings check_whole_pack(const std::string& folder, const std::function<bool(int64_t, int64_t, uint64_t)>& go_on);

}  // namespace penstock
