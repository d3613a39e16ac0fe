// make_demo_data FOLDER COUNT VAL_COUNT CLASSES SEED THREADS: for Python tests.
#include <cstdio>
#include <cstdlib>

#include "launch/demo_data.h"
#include "runtime/base/error.h"

int main(int argc, char** argv) {
  if (argc != 7) return 2;
  try {
    const penstock::DemoDataResult result =
        penstock::make_demo_data({.folder = argv[1],
                                  .count = std::atoll(argv[2]),
                                  .val_count = std::atoll(argv[3]),
                                  .classes = std::atoi(argv[4]),
                                  .seed = static_cast<uint64_t>(std::atoll(argv[5])),
                                  .threads = std::atoi(argv[6])});
    std::printf("%lld made, %lld reused, %lld bytes\n", static_cast<long long>(result.made),
                static_cast<long long>(result.reused), static_cast<long long>(result.bytes));
  } catch (const penstock::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return error.exit_code();
  }
  return 0;
}
