// A training program in small: epochs of the training split, then the validation split once. It reads every batch, as a
// network would, and prints a checksum.
//
//   penstock launch --run job.yaml -n 4 -- build/release/consume job.yaml [--epochs=2] [key.sub=value ...]
//   PENSTOCK_ATTACH=1 torchrun --no_python … build/release/consume job.yaml      # fed by `penstock serve job.yaml`
//   build/release/consume job.yaml                          # without penstock run: loads in threads of its own
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "runtime/client/data_loader.h"

namespace {

struct Totals {
  long long images = 0;
  long long counted = 0;
  double sum = 0;
};

template <class T>
double sum_of_some(const penstock::TensorView& images) {
  const T* const values = images.as<T>();  // throws where they are of another type
  double sum = 0;
  for (int64_t i = 0; i < images.elements(); i += 16) sum += values[i];
  return sum;
}

Totals consume(penstock::DataLoader& loader) {
  Totals totals;
  for (auto& batch : loader) {
    const penstock::TensorView images = batch.image();
    totals.sum += images.dtype == penstock::DType::uint8 ? sum_of_some<uint8_t>(images) : sum_of_some<float>(images);
    totals.images += batch.size();
    totals.counted += batch.num_valid();
  }
  return totals;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: consume JOB.yaml [--epochs=N] [key.sub=value ...]\n");
    return 2;
  }
  int epochs = 2;
  penstock::DataLoaderOptions options;
  for (int i = 2; i < argc; ++i) {
    if (std::strncmp(argv[i], "--epochs=", 9) == 0) {
      epochs = std::atoi(argv[i] + 9);
    } else {
      options.overrides.emplace_back(argv[i]);
    }
  }
  options.on_warning = [](const std::string& text) { std::fprintf(stderr, "consume: warning: %s\n", text.c_str()); };
  try {
    penstock::DataLoader train(argv[1], "train", options);
    // Open from the beginning on: what is wrong with it is said now, and not after the last epoch.
    penstock::DataLoader val(argv[1], "val", options);
    for (int epoch = 0; epoch < epochs; ++epoch) {
      train.set_epoch(epoch);
      const Totals totals = consume(train);
      std::printf("trainer %d of %d: epoch %d, %lld images in %lld batches, checksum %.6e\n", train.rank(),
                  train.num_replicas(), epoch, totals.images, static_cast<long long>(train.size()), totals.sum);
    }
    const Totals totals = consume(val);
    std::printf("trainer %d of %d: validation, %lld images, %lld of them count\n", val.rank(), val.num_replicas(),
                totals.images, totals.counted);
  } catch (const penstock::Error& error) {
    std::fprintf(stderr, "consume: %s\n", error.what());
    return error.exit_code();
  }
  return 0;
}
