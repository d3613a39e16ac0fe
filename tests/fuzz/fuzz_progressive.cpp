// Progressive JPEG under libFuzzer: our own decoder and libjpeg-turbo agree about every file, whole or damaged.
//
// The input is no file but how to change one: two bytes choose one of 4,096 pictures, four the window, each further
// four an edit of the file (two bytes where, one what, one value). So nearly every input gets past the headers, and one
// that does nothing has to be "ours". fuzz_jpeg does the same with bytes as they come.
#include <algorithm>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "runtime/decode/decoder.h"
#include "runtime/decode/jpeg/progressive_scans.h"
#include "tests/decode/jpeg_damage.h"
#include "tests/decode/jpeg_files.h"
#include "tests/decode/progressive_files.h"
#include "tests/fuzz/decode_outcome.h"

namespace {

using namespace penstock;
using namespace penstock_test;

struct Picture {
  std::vector<std::byte> file;
  bool whole = false;  // all bits of all coefficients, and nothing that is left to the library
};

constexpr size_t kPictures = 4096;

Picture make_picture(uint32_t number) {
  std::mt19937 random(number);
  JpegSpec spec = random_progressive(random, 40);
  spec.optimize = false;
  bool complete = true;
  // An incomplete progression, which libjpeg smooths. The first three scans are those of DC, in whatever order.
  if (spec.scans.size() > 3 && number % 16 == 0) {
    spec.scans.resize(static_cast<size_t>(draw(random, 3, static_cast<int>(spec.scans.size()))));
    complete = false;
  }
  const bool narrow = !spec.grey && spec.h == 2 && spec.width <= 4;
  return {make_jpeg(spec), complete && !narrow && spec.scans.size() <= ProgressiveScans::kMostScans};
}

// Encoding costs more than all else: each picture is made once.
const Picture& picture_of(uint32_t number) {
  static std::vector<Picture> made(kPictures);
  Picture& picture = made[number % kPictures];
  if (picture.file.empty()) picture = make_picture(number % kPictures);
  return picture;
}

void edit(std::vector<std::byte>& file, const uint8_t* order) {
  if (file.size() < 4) return;
  const size_t at = static_cast<size_t>(order[0] | order[1] << 8) % file.size();
  damage_at(file, at, order[2] % kKindsOfDamage, static_cast<std::byte>(order[3]));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr size_t head = 6;
  constexpr size_t most_edits = 8;
  if (size < head) return 0;
  static const DecodeLimits limits{.max_pixels = 1 << 14, .max_scans = ProgressiveScans::kMostScans};
  static Decoder own(limits);
  static Decoder library(limits, {.own_jpeg = false});
  const Picture& picture = picture_of(static_cast<uint32_t>(data[0] | data[1] << 8));
  std::vector<std::byte> file = picture.file;
  const size_t end = std::min(size, head + 4 * most_edits);
  for (size_t at = head; at + 4 <= end; at += 4) edit(file, data + at);
  // The memory has exactly this size: reading a byte too far is seen.
  const std::vector<std::byte> bytes(file.begin(), file.end());
  ImageHeader header;
  if (!read_header(bytes, limits, header).ok()) return 0;
  const int width = 1 + data[2] % header.width;
  const int height = 1 + data[3] % header.height;
  const Box box{data[4] % (header.width - width + 1), data[5] % (header.height - height + 1), width, height};
  const int64_t before = own.counts().own_jpeg;
  require_equal(decode(own, bytes, header, box), decode(library, bytes, header, box), "one status", "the same pixels");
#if defined(__x86_64__)
  if (size < head + 4 && picture.whole) require(own.counts().own_jpeg == before + 1, "a regular file is ours");
#endif
  (void)before;
  return 0;
}
