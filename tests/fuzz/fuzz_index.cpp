// The index file, its checksums made right so that what they guard is reached; then a data set read through it.
#include <cstring>

#include "runtime/datasets/sample_table.h"
#include "tests/fuzz/memory_disk.h"
#include "tests/fuzz/sealed_table.h"

using namespace penstock;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  std::vector<uint64_t> words((size + 6) / 8);
  auto* bytes = reinterpret_cast<uint8_t*>(words.data());
  const size_t length = size - 1;
  std::memcpy(bytes, data + 1, length);
  if ((data[0] & 1) != 0) seal_table(words, length);
  try {
    SampleTable table = SampleTable::parse(bytes_of(bytes, length), nullptr);
    static const std::vector<uint8_t> content(70000, 7);
    MemoryDisk disk;
    disk.add("/d/shard-000.tar", bytes_of(content.data(), content.size()));
    DecodeLimits limits;
    limits.max_encoded_bytes = 1 << 20;
    auto shards = std::make_shared<ShardFiles>(disk, uint64_t{1} << 20);
    read_all(TableSource(std::move(table), "/d", limits, shards, disk));
  } catch (const Error&) {
  }
  return 0;
}
