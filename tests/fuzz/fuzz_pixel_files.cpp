// CIFAR, MNIST (plain and gzip) and .npy headers.
#include "runtime/datasets/npy_header.h"
#include "runtime/datasets/pixel_files.h"
#include "tests/fuzz/memory_disk.h"

using namespace penstock;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const auto bytes = bytes_of(data + 2, size - 2);
  MemoryDisk disk;
  DatasetSpec spec;
  switch (data[0] % 6) {
    case 0: {
      const size_t cut = std::min<size_t>(bytes.size(), data[1]);
      disk.add("/m/train-labels-idx1-ubyte", bytes.first(cut));
      disk.add("/m/train-images-idx3-ubyte", bytes.subspan(cut));
      spec.mnist = "/m";
      break;
    }
    case 1:
      disk.add("/m/train-labels-idx1-ubyte.gz", bytes);
      disk.add("/m/train-images-idx3-ubyte.gz", bytes);
      spec.mnist = "/m";
      break;
    case 2:
      disk.add("/c/train.bin", bytes);
      spec.cifar100 = "/c";
      break;
    case 3:
      disk.add("/c/test_batch.bin", bytes);
      spec.cifar10 = "/c";
      spec.train = false;
      break;
    case 4:
      disk.add("/c/test_batch", bytes);
      spec.cifar10 = "/c";
      spec.train = false;
      break;
    default: {
      NpyHeader header;
      (void)read_npy_header(bytes, bytes.size() + data[1], header);
      return 0;
    }
  }
  read_all(spec, disk);
  return 0;
}
