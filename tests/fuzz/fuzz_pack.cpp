// A pack: index and one shard in one input, their checksums made right so that what they guard is reached; opened, read
// to its end, and the shard's own table taken as a resumed `penstock pack` takes it. Either as they come, or a good
// pack with bytes of it changed: three bytes of input a change (where, and what is added by exclusive or).
#include <cstring>

#include "runtime/base/hash.h"
#include "runtime/datasets/pack_source.h"
#include "tests/fuzz/memory_disk.h"
#include "tests/fuzz/sealed_table.h"
#include "tests/support/small_pack.h"

using namespace penstock;

namespace {

void seal_trailer(std::vector<uint8_t>& shard, size_t table_bytes) {
  if (shard.size() < sizeof(PackTrailer)) return;
  PackTrailer trailer;
  std::memcpy(&trailer, shard.data() + shard.size() - sizeof trailer, sizeof trailer);
  trailer.shard_bytes = shard.size();
  const size_t body = shard.size() - sizeof trailer;
  if (table_bytes <= body) {
    trailer.table_bytes = table_bytes;
    trailer.table_offset = body - table_bytes;
    const Sum128 sum = hash128(bytes_of(shard.data() + trailer.table_offset, table_bytes));
    trailer.table_sum[0] = sum.low;
    trailer.table_sum[1] = sum.high;
  }
  trailer = sealed(trailer);
  std::memcpy(shard.data() + body, &trailer, sizeof trailer);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 5) return 0;
  std::vector<uint64_t> words;
  std::vector<uint8_t> shard;
  size_t cut = 0;
  size_t table_bytes = 0;
  if ((data[0] & 4) != 0) {
    static const SmallPack good = small_pack();
    SmallPack pack = good;
    cut = pack.index.size();
    table_bytes = pack.table_bytes;
    for (size_t i = 1; i + 2 < size; i += 3) {
      const size_t at = static_cast<size_t>(data[i] | data[i + 1] << 8) % (cut + pack.shard.size());
      (at < cut ? pack.index[at] : pack.shard[at - cut]) ^= data[i + 2];
    }
    words.resize((cut + 7) / 8);
    std::memcpy(words.data(), pack.index.data(), cut);
    shard = std::move(pack.shard);
  } else {
    cut = std::min<size_t>(size - 5, static_cast<size_t>(data[1] | data[2] << 8));
    table_bytes = static_cast<size_t>(data[3] | data[4] << 8);
    words.resize((cut + 7) / 8);
    if (cut > 0) std::memcpy(words.data(), data + 5, cut);
    shard.assign(data + 5 + cut, data + size);
  }
  if ((data[0] & 1) != 0) seal_table(words, cut);
  if ((data[0] & 2) != 0) seal_trailer(shard, table_bytes);
  MemoryDisk disk;
  disk.add("/p/shard-00000.pack", bytes_of(shard.data(), shard.size()));
  try {
    const MemoryFile file("/p/shard-00000.pack", bytes_of(shard.data(), shard.size()));
    const SampleTable own = read_shard_table(file, read_trailer(file), file.size());
    for (int64_t i = 0; i < own.size(); ++i) (void)notes_of(own, i);
  } catch (const Error&) {
  }
  try {
    SampleTable table = SampleTable::parse(bytes_of(reinterpret_cast<const uint8_t*>(words.data()), cut), nullptr);
    check_pack(table, "/p", disk);
    for (int64_t i = 0; i < std::min<int64_t>(table.size(), 64); ++i) (void)notes_of(table, i);
    DecodeLimits limits;
    limits.max_encoded_bytes = 1 << 20;
    read_all(PackSource(std::move(table), "/p", limits, disk));
  } catch (const Error&) {
  }
  return 0;
}
