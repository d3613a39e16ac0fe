// Tar shards. The checksum of every block that could be a header is made right first: guessing it is not what is
// tested.
#include <array>
#include <cstring>

#include "tests/fuzz/memory_disk.h"

using namespace penstock;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  std::vector<uint8_t> archive(data + 1, data + size);
  for (size_t at = 0; (data[0] & 1) != 0 && at + 512 <= archive.size(); at += 512) {
    uint8_t* block = archive.data() + at;
    static const std::array<uint8_t, 512> nothing{};
    if (std::memcmp(block, nothing.data(), 512) == 0) continue;
    std::fill_n(block + 148, 8, uint8_t{' '});
    unsigned sum = 0;
    for (size_t i = 0; i < 512; ++i) sum += block[i];
    for (size_t i = 0; i < 6; ++i) block[148 + i] = static_cast<uint8_t>('0' + ((sum >> (15 - 3 * i)) & 7));
    block[154] = 0;
    block[155] = ' ';
  }
  if ((data[0] & 2) != 0) archive.resize((archive.size() + 511) / 512 * 512 + 1024);
  MemoryDisk disk;
  disk.add("/d/a.tar", bytes_of(archive.data(), archive.size()));
  DatasetSpec spec;
  spec.tar = "/d/a.tar";
  if ((data[0] & 4) != 0) spec.fields = "box, txt, npy";
  if ((data[0] & 8) != 0) spec.image = "jpg";
  read_all(spec, disk);
  return 0;
}
