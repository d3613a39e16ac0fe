// Time of decoding and resampling on one thread, for crops as RandomResizedCrop(224) draws them.
//
//   find FOLDER -name '*.jpg' | crop_bench [ROUNDS [whole]]
//
// Not a test: prints milliseconds an image (mean over all files, best round), for decoding and for resampling to planar
// 224 x 224 with bilinear taps. Every file is decoded three times in turn, by the usual way, with a side index and by
// libjpeg-turbo alone, so that the ratios (median over rounds) hold on a busy machine too; their bytes are compared.
// With `whole` the crop is the whole picture. The interval of the index: PENSTOCK_INDEX_INTERVAL (MCUs; 0: by the
// file's size).
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

#include "runtime/decode/decoder.h"
#include "runtime/pixels/resample.h"
#include "runtime/pixels/resample_kernels.h"

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
  const bool whole = argc > 2 && std::strcmp(argv[2], "whole") == 0;
  std::vector<std::vector<char>> files;
  for (std::string path; std::getline(std::cin, path);) {
    std::ifstream in(path, std::ios::binary);
    files.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  const char* interval = std::getenv("PENSTOCK_INDEX_INTERVAL");
  std::vector<SideIndex> indices(files.size());
  size_t index_bytes = 0;
  size_t file_bytes = 0;
  size_t indexed = 0;
  const auto build_start = Clock::now();
  for (size_t i = 0; i < files.size(); ++i) {
    const EncodedView view(reinterpret_cast<const std::byte*>(files[i].data()), files[i].size());
    if (!build_side_index(view, {.interval = interval != nullptr ? std::atoi(interval) : 0}, indices[i]))
      indices[i] = {};
    indexed += indices[i].empty() ? 0 : 1;
    index_bytes += indices[i].bytes();
    file_bytes += view.size();
  }
  const auto build_time = Clock::now() - build_start;
  const DecodeLimits limits;
  Decoder decoder(limits);
  Decoder library(limits, {.own_jpeg = false});
  PixelBuffer library_storage;
  PixelBuffer indexed_storage;
  double best_indexed = 1e9;
  std::vector<double> index_ratios;
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
    Clock::duration decode{}, by_index{}, by_library{}, resample{}, headers{};
    images = 0;
    for (size_t i = 0; i < files.size(); ++i) {
      const auto& file = files[i];
      const EncodedView view(reinterpret_cast<const std::byte*>(file.data()), file.size());
      ImageHeader header;
      const auto t0 = Clock::now();
      if (!read_header(view, limits, header).ok()) continue;
      const auto t1 = Clock::now();
      const Box crop = whole ? Box{0, 0, header.width, header.height} : random_crop(header, random);
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
      const auto t7 = Clock::now();
      by_library += t7 - t4;
      PixelView by_points;
      const bool same_status = decoder
                                   .decode(view, header, box, indexed_storage, by_points,
                                           {.index = indices[i].empty() ? nullptr : &indices[i]})
                                   .ok();
      by_index += Clock::now() - t7;
      for (int y = 0; y < box.height; ++y) {
        const size_t bytes = static_cast<size_t>(box.width) * 3;
        if (!decoded || !same_status || std::memcmp(same.row(y), pixels.row(y), bytes) != 0 ||
            std::memcmp(same.row(y), by_points.row(y), bytes) != 0) {
          std::printf("the ways differ\n");
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
    best_indexed = std::min(best_indexed, ms(by_index) / n);
    ratios.push_back(ms(by_library) / ms(decode));
    index_ratios.push_back(ms(decode) / ms(by_index));
    best_resample = std::min(best_resample, ms(resample) / n);
    best_header = std::min(best_header, ms(headers) / n);
  }
  std::sort(ratios.begin(), ratios.end());
  std::printf("decode by libjpeg-turbo %.3f ms, ratio %.2f; %lld by our decoder, %lld not ours\n", best_library,
              ratios.empty() ? 0.0 : ratios[ratios.size() / 2],
              static_cast<long long>(decoder.counts().own_jpeg) / rounds,
              static_cast<long long>(decoder.counts().library_jpeg) / rounds);
  std::sort(index_ratios.begin(), index_ratios.end());
  std::printf(
      "with a side index %.3f ms, ratio %.2f; %zu files have one, %.2f %% of their bytes, made in %.3f ms each\n",
      best_indexed, index_ratios.empty() ? 0.0 : index_ratios[index_ratios.size() / 2], indexed,
      100.0 * static_cast<double>(index_bytes) / static_cast<double>(std::max<size_t>(file_bytes, 1)),
      ms(build_time) / static_cast<double>(std::max<size_t>(files.size(), 1)));
  std::printf("%zu images, %s: header %.4f ms, decode %.3f ms, resample %.4f ms (taps included)\n", images,
              resample_target(), best_header, best_decode, best_resample);
  return 0;
}
