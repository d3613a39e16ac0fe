// TFRecord files, their checksums made right where bit 0 says so, and tf.train.Example by itself.
#include <cstring>

#include "runtime/datasets/tfrecord.h"
#include "tests/fuzz/memory_disk.h"

using namespace penstock;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  if ((data[0] & 4) != 0) {
    (void)parse_example(bytes_of(data + 1, size - 1), 1000, [](std::string_view, TfFeature&) {});
    return 0;
  }
  std::vector<uint8_t> file(data + 1, data + size);
  if ((data[0] & 1) != 0) {
    for (size_t at = 0; file.size() - at >= 16;) {
      uint64_t length = 0;
      std::memcpy(&length, file.data() + at, 8);
      uint32_t crc = masked_crc(bytes_of(file.data() + at, 8));
      std::memcpy(file.data() + at + 8, &crc, 4);
      if (length > file.size() - at - 16) break;
      crc = masked_crc(bytes_of(file.data() + at + 12, static_cast<size_t>(length)));
      std::memcpy(file.data() + at + 12 + length, &crc, 4);
      at += 16 + static_cast<size_t>(length);
    }
  }
  MemoryDisk disk;
  disk.add("/t/a", bytes_of(file.data(), file.size()));
  DatasetSpec spec;
  spec.tfrecord = "/t/a";
  if ((data[0] & 2) != 0) spec.fields = "image/filename, box";
  read_all(spec, disk);
  return 0;
}
