// Prints what ImageFolder found, one "label<TAB>key<NUL>" per sample, for image_folder_torchvision_test.py; on an
// error, the kind's exit code.
#include <cstdio>

#include "runtime/datasets/image_folder.h"

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  try {
    const penstock::ImageFolder folder(argv[1], int64_t{1} << 30);
    for (int64_t i = 0; i < folder.size(); ++i) {
      const std::string key = folder.key(i);
      std::printf("%lld\t", static_cast<long long>(folder.label(i)));
      std::fwrite(key.data(), 1, key.size(), stdout);
      std::putchar('\0');
    }
  } catch (const penstock::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return error.exit_code();
  }
  return 0;
}
