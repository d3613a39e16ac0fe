// What MDS' index.json says, and where a shard's samples lie: pure functions over bytes.
//
// A shard: u32 number of samples, u32 offset of each and of the end, a description (passed over: index.json has it),
// then the samples: the u32 sizes of its columns of variable size, in order, then the columns' bytes. Little-endian.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

struct MdsColumn {
  std::string name;
  std::string encoding;  // "jpeg", "int", "ndarray:float32:3,4", ...
  int64_t size = -1;     // -1: varies

  friend bool operator==(const MdsColumn&, const MdsColumn&) = default;
};

struct MdsShard {
  std::string raw;          // files below the folder, as "shard.00000.mds" or, merged, "1/shard.00000.mds"
  std::string compressed;   // empty: there is none
  std::string compression;  // "zstd:7"
  uint64_t raw_bytes = 0;
  uint64_t samples = 0;
  std::vector<MdsColumn> columns;
};

// Throws Error(dataset) without a file's name.
std::vector<MdsShard> parse_mds_index(std::string_view json);

}  // namespace penstock
