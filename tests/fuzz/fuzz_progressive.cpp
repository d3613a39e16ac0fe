// Progressive JPEG under libFuzzer: our own decoder and libjpeg-turbo agree about every file, whole or damaged.
//
// The input is no file but how to make one: 16 bytes choose picture, scan script and window, each further 4 an edit of
// the file (two bytes where, one what, one value). So nearly every input gets past the headers, and one that does
// nothing has to be "ours". fuzz_jpeg does the same with bytes as they come.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "runtime/decode/decoder.h"
#include "tests/decode/jpeg_files.h"
#include "tests/decode/progressive_files.h"

namespace {

using namespace penstock;
using namespace penstock_test;

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "broken promise: %s\n", what);
  std::abort();
}

JpegSpec spec_of(const uint8_t* data) {
  JpegSpec spec;
  spec.width = 1 + data[0] % 48;
  spec.height = 1 + data[1] % 48;
  spec.h = 1 + (data[2] & 1);
  spec.v = 1 + (data[2] >> 1 & 1);
  spec.grey = (data[2] >> 2 & 7) == 0;
  spec.restart = (data[2] >> 5 & 3) == 0 ? 1 + data[3] % 9 : 0;
  spec.quality = 1 + data[4] % 100;
  spec.noise_bits = 1 + data[5] % 8;
  spec.seed = data[6];
  spec.progressive = true;
  std::mt19937 random(static_cast<uint32_t>(data[7] | data[8] << 8));
  const int components = spec.grey ? 1 : 3;
  if (data[9] % 4 == 0) spec.scans = mozjpeg_script(components);
  if (data[9] % 4 >= 2) spec.scans = random_script(random, components);
  // An incomplete progression, which libjpeg smooths.
  const size_t fewest = 3;  // in whatever order DC comes
  if (spec.scans.size() > fewest && data[9] >= 240) {
    spec.scans.resize(std::max(spec.scans.size() - data[9] % 8 % spec.scans.size(), fewest));
  }
  return spec;
}

void edit(std::vector<std::byte>& file, const uint8_t* order) {
  if (file.size() < 4) return;
  const size_t at = static_cast<size_t>(order[0] | order[1] << 8) % file.size();
  const auto place = file.begin() + static_cast<std::ptrdiff_t>(at);
  const auto value = static_cast<std::byte>(order[3]);
  switch (order[2] % 6) {
    case 0:
      *place = value;
      break;
    case 1:
      *place ^= std::byte{1} << (order[3] & 7);
      break;
    case 2:
      file.erase(place);
      break;
    case 3:
      file.insert(place, value);
      break;
    case 4:
      *place = std::byte{0xFF};
      if (at + 1 < file.size()) file[at + 1] = value;
      break;
    default:
      if (order[3] < 64) file.resize(std::max<size_t>(at, 4));
  }
}

struct Outcome {
  Verdict verdict;
  std::vector<uint8_t> pixels;
};

Outcome decode(Decoder& decoder, EncodedView bytes, const ImageHeader& header, const Box& box, PixelBuffer& storage) {
  PixelView view;
  Outcome outcome{decoder.decode(bytes, header, box, storage, view), {}};
  if (!outcome.verdict.ok()) return outcome;
  for (int y = 0; y < view.height; ++y) {
    outcome.pixels.insert(outcome.pixels.end(), view.row(y), view.row(y) + static_cast<size_t>(view.width) * 3);
  }
  return outcome;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 16) return -1;
  static const DecodeLimits limits{.max_pixels = 1 << 16, .max_scans = 40};
  static Decoder own(limits);
  static Decoder library(limits, {.own_jpeg = false});
  static PixelBuffer storage;
  const JpegSpec spec = spec_of(data);
  std::vector<std::byte> file = make_jpeg(spec);
  for (size_t at = 16; at + 4 <= std::min<size_t>(size, 16 + 4 * 8); at += 4) edit(file, data + at);
  // Of exactly this size: reading a byte too far is seen.
  const std::vector<std::byte> bytes(file.begin(), file.end());
  ImageHeader header;
  if (!read_header(bytes, limits, header).ok()) return 0;
  const int width = 1 + data[10] % header.width;
  const int height = 1 + data[11] % header.height;
  const Box box{data[12] % (header.width - width + 1), data[13] % (header.height - height + 1), width, height};
  const int64_t before = own.counts().own_jpeg;
  const Outcome wanted = decode(library, bytes, header, box, storage);
  const Outcome got = decode(own, bytes, header, box, storage);
  require(got.verdict.ok() == wanted.verdict.ok() && got.verdict.reason == wanted.verdict.reason, "one verdict");
  require(got.pixels == wanted.pixels, "the same pixels");
#if defined(__x86_64__)
  const bool narrow = !spec.grey && spec.h == 2 && spec.width <= 4;
  if (size < 20 && data[9] < 240 && !narrow && spec.scans.size() <= 40) {
    require(own.counts().own_jpeg == before + 1, "a regular file is ours");
  }
#endif
  (void)before;
  return 0;
}
