// Images of batches in memory that loaders' GPUs export, as a program sees them: GPUs that are this CPU, in one
//   process.
#include <doctest/doctest.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "runtime/base/json_text.h"
#include "runtime/base/memory.h"
#include "runtime/client/data_loader.h"
#include "runtime/client/gpu_images.h"
#include "tests/decode/jpeg_files.h"
#include "tests/support/tiny_dataset.h"

namespace penstock {
namespace {

using Pixels = std::vector<uint8_t>;

constexpr size_t kEach = size_t{3} * 24 * 24;

DataLoaderOptions options(double export_mb) {
  DataLoaderOptions made;
  made.raw_images = made.gpu_images = true;
  made.overrides = {"loader.executor=gpu",
                    "loader.gpus=2",
                    "loader.gpu_memory_mb=24",
                    "loader.threads=1",
                    "loader.chunk_samples=2",
                    "trainer.hold=6",
                    "loader.gpu_export_mb=" + std::to_string(export_mb)};
  return made;
}

// As a program that has a GPU would; a GPU that is this CPU exports a file in memory.
class Reader {
 public:
  explicit Reader(DataLoader& loader) : offered_(loader) {}

  void meet() {
    for (const auto& memory : offered_.take()) {
      (void)open(*memory);
      offered_.use(*memory);
    }
  }
  Pixels pixels(const Batch& batch) {
    const auto* const batch_buffer = batch.image().as<uint8_t>();
    Pixels all(batch_buffer, batch_buffer + static_cast<size_t>(batch.size()) * kEach);
    int64_t at = 0;
    for (const GpuImages& images : OfferedGpuMemory::images_of(batch)) {
      CHECK(images.first >= at);
      CHECK(images.bytes == static_cast<size_t>(images.samples) * kEach);
      at = images.first + images.samples;
      std::memcpy(all.data() + static_cast<size_t>(images.first) * kEach, open(*images.memory).data() + images.at,
                  images.bytes);
      on_gpus += images.samples;
    }
    CHECK(at <= batch.size());
    return all;
  }

  int64_t on_gpus = 0;

 private:
  const SharedMemory& open(const ExportedGpuMemory& memory) {
    auto& mapped = mapped_[memory.number];
    if (mapped.size() == 0) mapped = SharedMemory::open(duplicate(memory.fd), memory.bytes, SharedMemory::Access::read);
    return mapped;
  }

  OfferedGpuMemory offered_;
  std::map<int32_t, SharedMemory> mapped_;
};

std::vector<Pixels> by_the_host(const std::string& job) {
  DataLoaderOptions plain;
  plain.raw_images = true;
  std::vector<Pixels> batches;
  for (int epoch = 0; epoch < 3; ++epoch) {
    DataLoader loader(job, "train", plain);
    for (auto it = loader.begin_at(epoch, 0); it != loader.end(); ++it) {
      const auto* const images = it->image().as<uint8_t>();
      batches.emplace_back(images, images + static_cast<size_t>(it->size()) * kEach);
    }
  }
  return batches;
}

// Some of its pictures are PNG, which no GPU makes.
struct PhotosAndGpus {
  PhotosAndGpus() : data(50) {
    ::setenv("PENSTOCK_GPUS", "host", 1);
    std::mt19937 random(3);
    for (int i = 0; i < 50; ++i) {
      if (i % 17 == 5) continue;
      penstock_test::JpegSpec spec = penstock_test::random_spec(random, 90);
      spec.width += 24;
      spec.height += 24;
      const std::vector<std::byte> file = penstock_test::make_jpeg(spec);
      data.folder().write("data/" + TinyDataset::name(i), {reinterpret_cast<const char*>(file.data()), file.size()});
    }
  }
  ~PhotosAndGpus() { ::unsetenv("PENSTOCK_GPUS"); }

  TinyDataset data;
};

TEST_CASE("images are where a batch says they are, for as long as it is held, in memory that is used again and again") {
  const PhotosAndGpus photos;
  const TinyDataset& data = photos.data;
  const std::vector<Pixels> wanted = by_the_host(data.job());
  // Room for some batches; for hardly more than a chunk of one consumer, so that most go by the host.
  for (const double export_mb : {0.5, 0.01}) {
    DataLoader loader(data.job(), "train", options(export_mb));
    Reader reader(loader);
    std::vector<Batch> held;
    size_t number = 0;
    for (int epoch = 0; epoch < 3; ++epoch) {
      for (const Batch& batch : loader) {
        reader.meet();
        held.push_back(batch);
        // This is the oldest of five: loaders have made others since.
        if (held.size() < 5) continue;
        CHECK(reader.pixels(held.front()) == wanted[number++]);
        held.erase(held.begin());
      }
    }
    for (const Batch& batch : held) CHECK(reader.pixels(batch) == wanted[number++]);
    held.clear();
    CHECK(number == wanted.size());
    const nlohmann::json report = parse_json(loader.report_json());
    CHECK(report["ranks"][0]["images_on_gpus"] == reader.on_gpus);
    // A label besides each image that the host has; what receivers received is what was sent.
    CHECK(report["ranks"][0]["received_bytes"] <
          static_cast<int64_t>(number * 8 * (kEach + 64)) - reader.on_gpus * static_cast<int64_t>(kEach));
    CHECK(report["ranks"][0]["received_bytes"] <= report["ranks"][1]["sent_bytes"]);
    if (export_mb > 0.1) CHECK(reader.on_gpus > 20);
    for (const auto& gpu : report["ranks"][1]["gpus"]["list"]) {
      INFO(gpu.dump());
      CHECK(gpu["exported"]["memory_mb"] > 0);
      if (export_mb < 0.1) CHECK(gpu["exported"]["full"] > 0);
    }
  }
}

TEST_CASE("a program that stops reading them goes on by the host") {
  const PhotosAndGpus photos;
  const TinyDataset& data = photos.data;
  const std::vector<Pixels> wanted = by_the_host(data.job());
  DataLoader loader(data.job(), "train", options(0.5));
  Reader reader(loader);
  size_t number = 0;
  int64_t then = 0;
  for (int epoch = 0; epoch < 3; ++epoch) {
    for (const Batch& batch : loader) {
      if (epoch < 1) reader.meet();
      CHECK(reader.pixels(batch) == wanted[number++]);
    }
    if (epoch == 1) OfferedGpuMemory(loader).use_none();
    if (epoch == 1) then = reader.on_gpus;
  }
  CHECK(then > 0);
  CHECK(reader.on_gpus == then);
}

TEST_CASE("a program that never opens them hears of them, and gets all by the host") {
  const PhotosAndGpus photos;
  const TinyDataset& data = photos.data;
  DataLoader loader(data.job(), "train", options(0.5));
  Reader reader(loader);
  const std::vector<Pixels> wanted = by_the_host(data.job());
  size_t number = 0;
  for (const Batch& batch : loader) CHECK(reader.pixels(batch) == wanted[number++]);
  OfferedGpuMemory offered(loader);
  CHECK(offered.take().size() == 2);
  CHECK(offered.take().empty());
  CHECK(reader.on_gpus == 0);
}

}  // namespace
}  // namespace penstock
