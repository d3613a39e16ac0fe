// Time of decoding and resampling on one thread, for crops as RandomResizedCrop(224) draws them.
//
//   find FOLDER -name '*.jpg' | crop_bench [ROUNDS]
//
// Not a test: prints milliseconds an image (mean over all files, best round), for decoding and for resampling to planar
// 224 x 224 with bilinear taps. Every file is decoded twice in turn, by the usual way and by libjpeg-turbo alone, so
// that the ratio (median over rounds) holds on a busy machine too; their bytes are compared.
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "runtime/augment/resample.h"
#include "runtime/augment/resample_kernels.h"
#include "runtime/decode/decoder.h"

namespace {

using namespace penstock;

// Time on a core of this thread alone, so that neighbours on the machine count for little.
struct Clock {
  using duration = std::chrono::nanoseconds;
  static duration now() {
    timespec t{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return std::chrono::seconds(t.tv_sec) + std::chrono::nanoseconds(t.tv_nsec);
  }
};

Box random_crop(const ImageHeader& header, std::mt19937& random) {
  std::uniform_real_distribution<double> scale(0.08, 1.0);
  std::uniform_real_distribution<double> log_ratio(std::log(3.0 / 4), std::log(4.0 / 3));
  const double area = static_cast<double>(header.width) * header.height;
  for (int i = 0; i < 10; ++i) {
    const double target = area * scale(random);
    const double ratio = std::exp(log_ratio(random));
    const int w = static_cast<int>(std::lround(std::sqrt(target * ratio)));
    const int h = static_cast<int>(std::lround(std::sqrt(target / ratio)));
    if (w < 1 || h < 1 || w > header.width || h > header.height) continue;
    return {static_cast<int>(random() % static_cast<unsigned>(header.width - w + 1)),
            static_cast<int>(random() % static_cast<unsigned>(header.height - h + 1)), w, h};
  }
  return {0, 0, header.width, header.height};
}

double ms(Clock::duration d) {
  return std::chrono::duration<double, std::milli>(d).count();
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 5;
  std::vector<std::vector<char>> files;
  for (std::string path; std::getline(std::cin, path);) {
    std::ifstream in(path, std::ios::binary);
    files.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  const DecodeLimits limits;
  Decoder decoder(limits);
  Decoder library(limits, {.own_jpeg = false});
  PixelBuffer library_storage;
  Resampler resampler;
  PixelBuffer storage;
  std::vector<uint8_t> planar(size_t{224} * 224 * 3);
  double best_decode = 1e9;
  double best_library = 1e9;
  std::vector<double> ratios;
  double best_resample = 1e9;
  double best_header = 1e9;
  size_t images = 0;
  for (int round = 0; round < rounds; ++round) {
    std::mt19937 random(7);
    Clock::duration decode{}, by_library{}, resample{}, headers{};
    images = 0;
    for (const auto& file : files) {
      const EncodedView view(reinterpret_cast<const std::byte*>(file.data()), file.size());
      ImageHeader header;
      const auto t0 = Clock::now();
      if (!read_header(view, limits, header).ok()) continue;
      const auto t1 = Clock::now();
      const Box crop = random_crop(header, random);
      const ResampleGeometry g{crop.width, crop.height, 224, 224, Filter::bilinear};
      const Box window{0, 0, 224, 224};
      const auto t2 = Clock::now();
      const Box need = resampler.source_window(g, window);
      const auto t3 = Clock::now();
      PixelView pixels;
      const Box box{crop.x + need.x, crop.y + need.y, need.width, need.height};
      if (!decoder.decode(view, header, box, storage, pixels).ok()) continue;
      const auto t4 = Clock::now();
      PixelView same;
      const bool decoded = library.decode(view, header, box, library_storage, same).ok();
      by_library += Clock::now() - t4;
      for (int y = 0; y < box.height; ++y) {
        if (!decoded || std::memcmp(same.row(y), pixels.row(y), static_cast<size_t>(box.width) * 3) != 0) {
          std::printf("the two ways differ\n");
          return 1;
        }
      }
      const auto t5 = Clock::now();
      resampler.run_planar(g, pixels, need, window, (random() & 1) != 0, false, planar.data());
      const auto t6 = Clock::now();
      headers += t1 - t0;
      decode += t4 - t3;
      resample += (t6 - t5) + (t3 - t2);
      ++images;
    }
    const auto n = static_cast<double>(std::max<size_t>(images, 1));
    best_decode = std::min(best_decode, ms(decode) / n);
    best_library = std::min(best_library, ms(by_library) / n);
    ratios.push_back(ms(by_library) / ms(decode));
    best_resample = std::min(best_resample, ms(resample) / n);
    best_header = std::min(best_header, ms(headers) / n);
  }
  std::sort(ratios.begin(), ratios.end());
  std::printf("decode by libjpeg-turbo %.3f ms, ratio %.2f; %lld by our decoder, %lld not ours\n", best_library,
              ratios.empty() ? 0.0 : ratios[ratios.size() / 2],
              static_cast<long long>(decoder.counts().own_jpeg) / rounds,
              static_cast<long long>(decoder.counts().library_jpeg) / rounds);
  std::printf("%zu images, %s: header %.4f ms, decode %.3f ms, resample %.4f ms (taps included)\n", images,
              resample_target(), best_header, best_decode, best_resample);
  return 0;
}
