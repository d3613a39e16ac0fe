// A training program that is an MPI rank itself: softmax regression on coarse pictures, gradients all-reduced by MPI.
//
//   mpirun -n 4 build/release/mpi_sgd job.yaml [--epochs=2] [key.sub=value ...]   # roles.trainers: 2, and two loaders
//   mpirun -n 2 build/release/mpi_sgd --embedded job.yaml                         # two trainers, each loading for itself
//
// Both print the same losses, to the last digit. The pipeline's images must be float32.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "bindings/mpi/join.h"

namespace {

constexpr int kGrid = 8;  // each channel becomes the means of 8 x 8 tiles
constexpr int kFeatures = 3 * kGrid * kGrid + 1;

std::vector<double> features_of(const penstock::TensorView& images, int64_t n) {
  const auto* values = images.as<float>();
  const int64_t height = images.shape[2], width = images.shape[3];
  std::vector<double> features(kFeatures, 0.0);
  features.back() = 1;
  for (int64_t c = 0; c < 3; ++c) {
    for (int64_t y = 0; y < height; ++y) {
      for (int64_t x = 0; x < width; ++x) {
        const int64_t tile = (c * kGrid + y * kGrid / height) * kGrid + x * kGrid / width;
        features[static_cast<size_t>(tile)] +=
            values[n * images.strides[0] + c * images.strides[1] + y * images.strides[2] + x * images.strides[3]];
      }
    }
  }
  const double tile_pixels = static_cast<double>(height * width) / (kGrid * kGrid);
  for (size_t i = 0; i + 1 < features.size(); ++i) features[i] /= tile_pixels;
  return features;
}

class Softmax {
 public:
  explicit Softmax(size_t classes) : classes_(classes), weights_(classes * kFeatures, 0.0) {}

  // Adds a sample's gradient, and gives its loss.
  double add(const std::vector<double>& features, int64_t label, std::vector<double>& gradient) const {
    std::vector<double> share(classes_);
    double total = 0;
    for (size_t k = 0; k < classes_; ++k) {
      for (size_t i = 0; i < kFeatures; ++i) share[k] += weights_[k * kFeatures + i] * features[i];
      total += share[k] = std::exp(share[k]);
    }
    for (size_t k = 0; k < classes_; ++k) {
      share[k] /= total;
      const double error = share[k] - (static_cast<int64_t>(k) == label ? 1 : 0);
      for (size_t i = 0; i < kFeatures; ++i) gradient[k * kFeatures + i] += error * features[i];
    }
    return -std::log(std::max(share[static_cast<size_t>(label)], 1e-300));
  }

  void step(const std::vector<double>& gradient, double rate) {
    for (size_t i = 0; i < weights_.size(); ++i) weights_[i] -= rate * gradient[i];
  }

 private:
  size_t classes_;
  std::vector<double> weights_;
};

void train(penstock::DataLoader& loader, MPI_Comm trainers, int epochs) {
  int rank = 0;
  MPI_Comm_rank(trainers, &rank);
  Softmax model(loader.class_names().size());
  for (int epoch = 0; epoch < epochs; ++epoch) {
    for (auto& batch : loader) {
      const penstock::TensorView images = batch.image();
      const auto* labels = batch.label().as<int64_t>();
      // The gradient, and behind it the loss and how many samples there were: one message for all of it.
      std::vector<double> sums(loader.class_names().size() * kFeatures + 2, 0.0);
      for (int64_t n = 0; n < batch.size(); ++n) {
        sums[sums.size() - 2] += model.add(features_of(images, n), labels[n], sums);
      }
      sums.back() = static_cast<double>(batch.size());
      MPI_Allreduce(MPI_IN_PLACE, sums.data(), static_cast<int>(sums.size()), MPI_DOUBLE, MPI_SUM, trainers);
      model.step(sums, 0.1 / sums.back());
      if (rank == 0) {
        std::printf("epoch %d step %lld loss %.17g\n", epoch, static_cast<long long>(batch.step()),
                    sums[sums.size() - 2] / sums.back());
      }
    }
  }
}

struct Arguments {
  std::string job;
  int epochs = 1;
  bool embedded = false;
  penstock::JoinOptions join;
};

std::optional<Arguments> arguments_of(int argc, char** argv) {
  Arguments found;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--embedded") {
      found.embedded = true;
    } else if (word.rfind("--epochs=", 0) == 0) {
      found.epochs = std::atoi(word.c_str() + std::strlen("--epochs="));
    } else if (found.job.empty()) {
      found.job = word;
    } else {
      found.join.overrides.push_back(word);
    }
  }
  return found.job.empty() ? std::nullopt : std::optional(found);
}

void run_embedded(const Arguments& arguments) {
  penstock::DataLoaderOptions options;
  options.overrides = arguments.join.overrides;
  int rank = 0;
  int size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  options.rank = rank;
  options.num_replicas = size;
  penstock::DataLoader loader(arguments.job, "train", options);
  train(loader, MPI_COMM_WORLD, arguments.epochs);
}

void run_joined(const Arguments& arguments) {
  penstock::mpi::Rank rank = penstock::mpi::join(MPI_COMM_WORLD, arguments.job, arguments.join);
  if (rank.loads()) {
    rank.serve();
    return;
  }
  penstock::DataLoader loader = rank.loader("train");
  train(loader, rank.trainers(), arguments.epochs);
  const std::string report = rank.leave();
  if (!report.empty()) std::fprintf(stderr, "%s\n", report.c_str());
}

}  // namespace

int main(int argc, char** argv) {
  const std::optional<Arguments> arguments = arguments_of(argc, argv);
  if (!arguments) {
    std::fprintf(stderr, "usage: mpi_sgd [--embedded] [--epochs=N] JOB [key.sub=value ...]\n");
    return 2;
  }
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  try {
    arguments->embedded ? run_embedded(*arguments) : run_joined(*arguments);
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "mpi_sgd: %s\n", problem.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
  return 0;
}
