// NVIDIA's nvJPEG itself, on the first GPU, behind the decoder that loaders use: where pixels land, how far they are
// from libjpeg-turbo's, what one bad file does to the others, and that its memory is bounded. Prints how far.
//
// nvJPEG has an arithmetic of its own, so bounds are loose: they tell a right picture from a wrong one. That regions
// lie where they should is shown by comparing with the region moved by one pixel, which has to fit worse.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/switches.h"
#include "runtime/gpu/gpus.h"
#include "tests/decode/jpeg_files.h"

namespace {

using namespace penstock;
using penstock_test::JpegSpec;

constexpr double kMostMean = 4;
constexpr int kMost = 80;

struct Decoded {
  int width = 0;
  int height = 0;
  std::vector<uint8_t> pixels;  // RGBRGB…
  uint8_t at(int x, int y, int channel) const { return pixels[static_cast<size_t>((y * width + x) * 3 + channel)]; }
};

Decoded by_libjpeg(const std::vector<std::byte>& file, bool fancy) {
  jpeg_decompress_struct info;
  jpeg_error_mgr errors;
  info.err = jpeg_std_error(&errors);
  jpeg_create_decompress(&info);
  jpeg_mem_src(&info, reinterpret_cast<const unsigned char*>(file.data()), file.size());
  jpeg_read_header(&info, TRUE);
  info.out_color_space = JCS_RGB;
  info.do_fancy_upsampling = fancy ? TRUE : FALSE;
  jpeg_start_decompress(&info);
  Decoded out{static_cast<int>(info.output_width), static_cast<int>(info.output_height), {}};
  out.pixels.resize(static_cast<size_t>(out.width) * static_cast<size_t>(out.height) * 3);
  while (info.output_scanline < info.output_height) {
    JSAMPROW row = out.pixels.data() + size_t{3} * info.output_scanline * info.output_width;
    jpeg_read_scanlines(&info, &row, 1);
  }
  jpeg_finish_decompress(&info);
  jpeg_destroy_decompress(&info);
  return out;
}

struct Difference {
  double mean = 0;
  int most = 0;
};

// Planes of a region against the picture's pixels there, moved by (dx, dy).
Difference difference(const uint8_t* planes, const GpuBox& region, const Decoded& whole, int dx = 0, int dy = 0) {
  Difference out;
  int64_t sum = 0;
  int64_t count = 0;
  for (int channel = 0; channel < 3; ++channel) {
    for (int y = 0; y < region.height; ++y) {
      for (int x = 0; x < region.width; ++x) {
        const int at_x = std::clamp(region.x + x + dx, 0, whole.width - 1);
        const int at_y = std::clamp(region.y + y + dy, 0, whole.height - 1);
        const int step =
            std::abs(planes[(channel * region.height + y) * region.width + x] - whole.at(at_x, at_y, channel));
        sum += step;
        out.most = std::max(out.most, step);
        ++count;
      }
    }
  }
  out.mean = static_cast<double>(sum) / static_cast<double>(count);
  return out;
}

// The library on the first GPU; ends the test as skipped where there is none.
class Bench {
 public:
  explicit Bench(const PictureDecoderOptions& options = {}) {
    try {
      if (switches().gpus == "host")
        throw Error(ErrorKind::runtime, "the GPU is played by this CPU, which has no nvJPEG");
      gpu_ = open_trainers_gpu(0);
      stream_ = gpu_->stream();
      decoder_ = stream_->picture_decoder(options);
    } catch (const Error& error) {
      std::printf("SKIP: %s\n", error.what());
      std::exit(77);
    }
  }

  void add(std::vector<std::byte> file, int width, int height, const GpuBox& region) {
    LibraryPicture picture{
        .width = width, .height = height, .region = region, .to_at = bytes_, .place = pictures_.size()};
    bytes_ += (static_cast<size_t>(region.width) * static_cast<size_t>(region.height) * 3 + kGap + 255) / 256 * 256;
    files_.push_back(std::move(file));
    pictures_.push_back(picture);
  }
  void add(const JpegSpec& spec, const GpuBox& region) {
    add(penstock_test::make_jpeg(spec), spec.width, spec.height, region);
  }
  // Decodes all, and sees to it that nothing between them was written.
  void decode() {
    const GpuBlock memory(*gpu_, bytes_, GpuMemory::device);
    out_.assign(bytes_, kPoison);
    stream_->upload(memory.data(), reinterpret_cast<const std::byte*>(out_.data()), bytes_);
    for (size_t i = 0; i < pictures_.size(); ++i) {
      pictures_[i].file = files_[i].data();
      pictures_[i].bytes = files_[i].size();
    }
    decoder_->decode(memory.data(), pictures_);
    stream_->wait(60 * kSecond);
    stream_->download(reinterpret_cast<std::byte*>(out_.data()), memory.data(), bytes_);
    stream_->wait(60 * kSecond);
    for (size_t i = 0; i < pictures_.size(); ++i) {
      const LibraryPicture& p = pictures_[i];
      const size_t from = p.to_at + static_cast<size_t>(p.region.width) * static_cast<size_t>(p.region.height) * 3;
      const size_t to = i + 1 < pictures_.size() ? pictures_[i + 1].to_at : bytes_;
      CHECK(std::all_of(out_.begin() + static_cast<ptrdiff_t>(from), out_.begin() + static_cast<ptrdiff_t>(to),
                        [](uint8_t b) { return b == kPoison; }));
    }
  }
  void clear() {
    pictures_.clear();
    files_.clear();
    bytes_ = 0;
  }

  const std::vector<LibraryPicture>& pictures() const { return pictures_; }
  const std::vector<std::byte>& file(size_t i) const { return files_[i]; }
  const uint8_t* planes(size_t i) const { return out_.data() + pictures_[i].to_at; }
  PictureDecoder& decoder() { return *decoder_; }
  bool cuts_regions() const { return decoder_->facts().cuts_regions; }

 private:
  static constexpr size_t kGap = 64;
  static constexpr uint8_t kPoison = 0xEE;
  std::unique_ptr<Gpu> gpu_;
  std::unique_ptr<GpuStream> stream_;
  std::unique_ptr<PictureDecoder> decoder_;
  std::vector<LibraryPicture> pictures_;
  std::vector<std::vector<std::byte>> files_;
  size_t bytes_ = 0;
  std::vector<uint8_t> out_;
};

struct Sampling {
  const char* name;
  int h;
  int v;
};
constexpr Sampling kSamplings[] = {{"4:4:4", 1, 1}, {"4:2:2", 2, 1}, {"4:2:0", 2, 2}, {"4:4:0", 1, 2}};

}  // namespace

TEST_CASE("regions at every border lie where they should, near libjpeg-turbo's pixels") {
  for (const ChromaUpsampling chroma : {ChromaUpsampling::interpolated, ChromaUpsampling::nearest}) {
    Bench bench({.chroma = chroma});
    std::fprintf(stderr, "%s, %d engines\n", bench.decoder().facts().name.c_str(), bench.decoder().facts().engines);
    for (const Sampling& sampling : kSamplings) {
      bench.clear();
      for (const auto& [width, height] : {std::pair{500, 375}, std::pair{64, 64}, std::pair{97, 203}}) {
        const JpegSpec spec{
            .width = width, .height = height, .h = sampling.h, .v = sampling.v, .quality = 92, .noise_bits = 4};
        bench.add(spec, {0, 0, width, height});
        if (!bench.cuts_regions()) continue;
        const int w = width / 2 / 16 * 16;
        const int h = height / 2 / 16 * 16;
        for (const GpuBox region : {GpuBox{0, 0, w, h}, GpuBox{width - w, 0, w, h}, GpuBox{0, height - h, w, h},
                                    GpuBox{width - w, height - h, w, h}, GpuBox{16, 16, w / 2, h / 2}}) {
          bench.add(spec, region);
        }
      }
      bench.decode();
      Difference worst;
      for (size_t i = 0; i < bench.pictures().size(); ++i) {
        const LibraryPicture& picture = bench.pictures()[i];
        CAPTURE(sampling.name);
        CAPTURE(i);
        REQUIRE_MESSAGE(picture.refusal == Refusal::none, bench.decoder().reason(picture.refusal));
        const Decoded whole = by_libjpeg(bench.file(i), chroma == ChromaUpsampling::interpolated);
        const Difference found = difference(bench.planes(i), picture.region, whole);
        CHECK(found.mean < kMostMean);
        CHECK(found.most < kMost);
        for (const auto& [dx, dy] : {std::pair{1, 0}, std::pair{-1, 0}, std::pair{0, 1}, std::pair{0, -1}}) {
          CHECK(difference(bench.planes(i), picture.region, whole, dx, dy).mean > found.mean);
        }
        worst = {std::max(worst.mean, found.mean), std::max(worst.most, found.most)};
      }
      std::printf(
          "{\"name\": \"nvjpeg against libjpeg-turbo\", \"ok\": true, \"sampling\": \"%s\", \"chroma\": \"%s\", "
          "\"pictures\": %zu, \"largest_mean_steps\": %.3f, \"largest_steps\": %d}\n",
          sampling.name, chroma == ChromaUpsampling::interpolated ? "interpolated" : "nearest", bench.pictures().size(),
          worst.mean, worst.most);
    }
  }
}

TEST_CASE("a file that is none is refused alone, in batches of any size") {
  Bench bench;
  for (const int size : {1, 2, 7, 64}) {
    for (const int bad : {0, size - 1}) {
      bench.clear();
      const JpegSpec spec{.width = 160, .height = 120, .quality = 92};
      for (int i = 0; i < size; ++i) {
        if (i == bad) {
          bench.add(std::vector<std::byte>(900, std::byte{0x5A}), 160, 120, {0, 0, 160, 120});
        } else {
          JpegSpec one = spec;
          one.seed = static_cast<uint32_t>(i + 1);
          bench.add(one, {0, 0, 160, 120});
        }
      }
      bench.decode();
      for (int i = 0; i < size; ++i) {
        const LibraryPicture& picture = bench.pictures()[static_cast<size_t>(i)];
        CAPTURE(size);
        CAPTURE(i);
        if (i == bad) {
          CHECK(picture.refusal == Refusal::file);
        } else {
          REQUIRE(picture.refusal == Refusal::none);
          const Decoded whole = by_libjpeg(bench.file(static_cast<size_t>(i)), true);
          CHECK(difference(bench.planes(static_cast<size_t>(i)), picture.region, whole).mean < kMostMean);
        }
      }
    }
  }
}

TEST_CASE("another size than the file says is refused before anything is written") {
  Bench bench;
  bench.add(penstock_test::make_jpeg({.width = 320, .height = 240}), 160, 120, {0, 0, 160, 120});
  bench.decode();
  CHECK(bench.pictures()[0].refusal == Refusal::file);
}

TEST_CASE("what would need more than its memory is refused, and smaller ones are decoded") {
  Bench bench({.memory_bytes = size_t{4} << 20});
  bench.add({.width = 6000, .height = 4000, .noise_bits = 2}, {0, 0, 6000, 4000});
  bench.decode();
  CHECK(bench.pictures()[0].refusal == Refusal::memory);
  bench.clear();
  bench.add({.width = 64, .height = 48}, {0, 0, 64, 48});
  bench.decode();
  CHECK(bench.pictures()[0].refusal == Refusal::none);
}
