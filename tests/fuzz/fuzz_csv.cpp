// CSV files, lists, and patterns of file names.
#include "runtime/datasets/file_pattern.h"
#include "tests/fuzz/memory_disk.h"

using namespace penstock;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const auto bytes = bytes_of(data + 1, size - 1);
  MemoryDisk disk;
  disk.add("/d/x.csv", bytes);
  DatasetSpec spec;
  if ((data[0] & 1) != 0) {
    spec.list = "/d/x.csv";
  } else {
    spec.csv = "/d/x.csv";
    if ((data[0] & 2) != 0) spec.fields = "number, name:text";
  }
  read_all(spec, disk);
  if (bytes.size() < 40) {
    try {
      (void)expand_braces({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    } catch (const Error&) {
    }
  }
  return 0;
}
