// What a GPU does with pictures once their bytes lie in its memory, stage by stage: without reading, uploading,
// fetching.
//
//   bench_gpu_stages FOLDER [--rounds=20] [--size=224]     # a line of JSON for each way and batch size
//
// FOLDER holds JPEG files. Each goes through RandomResizedCrop and RandomHorizontalFlip. Ways: `coefficients`, where
// entropy decoding was done here and quantised coefficients were uploaded, and `scan`, where the GPU decodes it too,
// from the file's bytes. The GPU is that of open_trainers_gpu(0); PENSTOCK_GPUS=host makes it this CPU, and the figures
// meaningless.
//
// Every image is compared with the CPU's before the timing and after it. `copy_gb_per_s` is what the GPU copies within
// its memory, bytes read and bytes written counted; `least_bytes` what a batch has to be read and written at least:
// what was uploaded, and the images. So `of_copy` is how much of the GPU's memory bandwidth that least would take.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/json_text.h"
#include "runtime/gpu/batch_builder.h"
#include "runtime/gpu/gpu_sample.h"
#include "runtime/gpu/gpus.h"
#include "runtime/transforms/pipeline.h"

namespace penstock {
namespace {

constexpr size_t kMostMemory = size_t{2} << 30;

struct Picture {
  std::vector<std::byte> file;
  ImageHeader header;
  Draws draws;
  std::vector<uint8_t> wanted;
};

std::vector<Picture> read_pictures(const std::string& folder, const Pipeline& pipeline, Scratch& scratch) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.path().extension() == ".jpg") paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<Picture> pictures;
  for (const auto& path : paths) {
    std::ifstream in(path, std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(in)), {});
    Picture picture;
    picture.file.resize(text.size());
    std::memcpy(picture.file.data(), text.data(), text.size());
    if (!read_header(picture.file, {}, picture.header, pipeline.header_options()).ok()) continue;
    picture.draws = pipeline.draw({.seed = 1, .epoch = 0, .index = pictures.size()}, picture.header);
    picture.wanted.resize(static_cast<size_t>(pipeline.out_width()) * static_cast<size_t>(pipeline.out_height()) * 3);
    if (!pipeline.apply(picture.file, picture.header, picture.draws, picture.wanted, scratch).ok()) continue;
    pictures.push_back(std::move(picture));
  }
  if (pictures.empty()) throw Error(ErrorKind::usage, "'" + folder + "' has no JPEG files that can be read");
  return pictures;
}

double copy_gb_per_s(Gpu& gpu) {
  const size_t bytes = std::min<size_t>(kMostMemory / 2, static_cast<size_t>(gpu.info().memory_bytes) / 8);
  const GpuBlock from(gpu, bytes, GpuMemory::device);
  const GpuBlock to(gpu, bytes, GpuMemory::device);
  const auto stream = gpu.stream();
  stream->copy(to.data(), from.data(), bytes);
  stream->wait(60 * kSecond);
  (void)stream->take_times();
  constexpr int kTimes = 10;
  for (int i = 0; i < kTimes; ++i) stream->copy(to.data(), from.data(), bytes);
  stream->wait(60 * kSecond);
  return 2.0 * kTimes * static_cast<double>(bytes) / static_cast<double>(stream->take_times().copy_ns);
}

// A batch in a GPU's memory, uploaded once, launched as often as one likes.
class Resident {
 public:
  Resident(Gpu& gpu, size_t bytes, size_t size)
      : memory_(gpu, bytes, GpuMemory::device),
        upload_(gpu, bytes, GpuMemory::pinned),
        outputs_(gpu, bytes / 4, GpuMemory::pinned),
        batch_(upload_.data(), {bytes, bytes, size}),
        stream_(gpu.stream()) {}

  // How many of the pictures it holds, from `first` on, round and round; 0: none of them is for GPUs.
  size_t fill(const Pipeline& pipeline, std::vector<Picture>& pictures, const GpuEntropy& entropy, size_t size,
              Scratch& scratch) {
    if (!batch_.begin(size, pipeline.out_width(), pipeline.out_height())) return 0;
    for (size_t tried = 0; places_.size() < size && tried < 4 * size + pictures.size(); ++tried) {
      Picture& picture = pictures[tried % pictures.size()];
      GpuSample sample(entropy);
      if (!sample.plan(pipeline, scratch, {.bytes = picture.file}, picture.header, picture.draws)) continue;
      if (sample.leaves_entropy() != entropy.by_search) {
        sample.forget();
        continue;
      }
      const auto place = batch_.reserve(sample);
      if (!place) {
        sample.forget();
        break;
      }
      if (batch_.fill(*place, sample)) {
        places_.push_back({*place, &picture});
      } else {
        batch_.drop(*place);
      }
    }
    batch_.seal();
    stream_->upload(memory_.data(), upload_.data(), batch_.upload_bytes());
    stream_->wait(60 * kSecond);
    (void)stream_->take_times();
    return places_.size();
  }
  void launch() {
    for (const StageLaunch& launch : batch_.launches()) stream_->launch(memory_.data(), launch);
  }
  GpuTimes wait() {
    stream_->wait(60 * kSecond);
    return stream_->take_times();
  }
  // Error where one is not the CPU's.
  void check() {
    const size_t each = batch_.output_bytes();
    stream_->download(outputs_.data(), memory_.data() + batch_.outputs_at(), batch_.places() * each);
    stream_->download(upload_.data() + batch_.statuses_at(), memory_.data() + batch_.statuses_at(),
                      batch_.status_bytes());
    (void)wait();
    for (const auto& [place, picture] : places_) {
      if (!batch_.good(place)) throw Error(ErrorKind::runtime, "a picture came back unmade");
      if (std::memcmp(outputs_.data() + place * each, picture->wanted.data(), each) != 0) {
        throw Error(ErrorKind::runtime, "the GPU's image is not the CPU's");
      }
    }
  }
  size_t launches() const { return batch_.launches().size(); }
  size_t upload_bytes() const { return batch_.upload_bytes(); }
  size_t least_bytes() const { return batch_.upload_bytes() + places_.size() * batch_.output_bytes(); }

 private:
  GpuBlock memory_;
  GpuBlock upload_;
  GpuBlock outputs_;
  BatchBuilder batch_;
  std::unique_ptr<GpuStream> stream_;
  std::vector<std::pair<size_t, Picture*>> places_;
};

constexpr const char* kStageNames[kGpuStages] = {
    "entropy", "sync", "sum",    "write",       "inverse",   "colour", "across", "down",   "place", "point",
    "tally",   "tone", "smooth", "blur_across", "blur_down", "warp",   "gather", "finish", "hash",  "digest"};

int run(int argc, char** argv) {
  int rounds = 20;
  int64_t size = 224;
  std::string folder;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word.starts_with("--rounds=")) {
      rounds = std::atoi(argv[i] + 9);
    } else if (word.starts_with("--size=")) {
      size = std::atoi(argv[i] + 7);
    } else {
      folder = word;
    }
  }
  if (folder.empty() || rounds < 1 || size < 1) {
    throw Error(ErrorKind::usage, "which folder of JPEG files?", "bench_gpu_stages FOLDER [--rounds=20] [--size=224]");
  }
  const Pipeline pipeline(
      {{"RandomResizedCrop", {{"size", std::vector<double>{static_cast<double>(size), static_cast<double>(size)}}}},
       {"RandomHorizontalFlip", {}}});
  Scratch scratch{DecodeLimits{}};
  std::vector<Picture> pictures = read_pictures(folder, pipeline, scratch);
  const std::unique_ptr<Gpu> gpu = open_trainers_gpu(0);
  const double copy = copy_gb_per_s(*gpu);
  for (const bool by_gpu : {false, true}) {
    for (const size_t batch : {size_t{1}, size_t{16}, size_t{64}, size_t{256}}) {
      Resident resident(*gpu, std::min(kMostMemory, static_cast<size_t>(gpu->info().memory_bytes) / 8), batch);
      const size_t images = resident.fill(pipeline, pictures, {.by_index = false, .by_search = by_gpu}, batch, scratch);
      if (images == 0) throw Error(ErrorKind::runtime, "none of the pictures is for GPUs");
      resident.launch();
      resident.check();
      const MonotonicClock clock;
      const Nanoseconds begun = clock.now();
      for (int round = 0; round < rounds; ++round) resident.launch();
      const GpuTimes times = resident.wait();
      const double seconds = static_cast<double>(clock.now() - begun) * 1e-9;
      resident.check();
      const double count = static_cast<double>(images) * rounds;
      nlohmann::json stages;
      for (size_t s = 0; s < kGpuStages; ++s) {
        if (times.stage_ns[s] > 0) stages[kStageNames[s]] = static_cast<double>(times.stage_ns[s]) / count * 1e-3;
      }
      const double least = static_cast<double>(resident.least_bytes()) / static_cast<double>(images);
      const nlohmann::json line{{"name", by_gpu ? "scan" : "coefficients"},
                                {"ok", true},
                                {"batch", images},
                                {"images_per_s", count / seconds},
                                {"launches", resident.launches()},
                                {"us_an_image_by_stage", stages},
                                {"uploaded_bytes_an_image", resident.upload_bytes() / images},
                                {"least_bytes_an_image", least},
                                {"copy_gb_per_s", copy},
                                {"of_copy", least * count / seconds / (copy * 1e9)}};
      std::printf("%s\n", json_text(line).c_str());
      std::fflush(stdout);
    }
  }
  return 0;
}

}  // namespace
}  // namespace penstock

int main(int argc, char** argv) {
  try {
    return penstock::run(argc, argv);
  } catch (const penstock::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return error.exit_code();
  }
}
