// MDS: index.json and a shard, in one input. What index.json says of the shard's size is made right, so that the shard
// is reached.
#include "runtime/datasets/mds_shards.h"
#include "tests/fuzz/memory_disk.h"

using namespace penstock;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 3) return 0;
  const size_t cut = std::min<size_t>(size - 3, data[1] | data[2] << 8);
  std::string index(reinterpret_cast<const char*>(data + 3), cut);
  const auto shard = bytes_of(data + 3 + cut, size - 3 - cut);
  if (const size_t at = index.find("\"bytes\":"); (data[0] & 1) != 0 && at != std::string::npos) {
    size_t end = at + 8;
    while (end < index.size() && (index[end] == ' ' || (index[end] >= '0' && index[end] <= '9'))) ++end;
    index.replace(at + 8, end - at - 8, std::to_string(shard.size()));
  }
  MemoryDisk disk;
  disk.add("/m/index.json", as_bytes_of(index));
  disk.add("/m/shard.00000.mds", shard);
  DatasetSpec spec;
  spec.mds = "/m";
  if ((data[0] & 2) != 0) spec.fields = "name";
  read_all(spec, disk);
  return 0;
}
