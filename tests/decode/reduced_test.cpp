// Decoding at 1/2, 1/4 and 1/8: our own decoder equal to libjpeg-turbo's scaled decoding in every byte and every
// status, with an index and without; its vector code equal to plain loops on every target of this CPU.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "runtime/decode/decoder.h"
#include "runtime/decode/jpeg/coefficient_tiles.h"
#include "runtime/decode/jpeg/jpeg_decoder.h"
#include "runtime/decode/jpeg/jpeg_kernels.h"
#include "runtime/decode/jpeg/sample_grid.h"
#include "tests/decode/jpeg_comparison.h"
#include "tests/decode/jpeg_files.h"

namespace reduced_test {

namespace {

using namespace penstock;
using namespace penstock_test;

Box reduced_box(std::mt19937& random, const ImageHeader& header, int reduction) {
  return random_box(random, reduced_size(header.width, reduction), reduced_size(header.height, reduction));
}

// A whole image at 1/reduction by libjpeg alone.
std::vector<uint8_t> scaled_by_libjpeg(const File& file, int reduction, int& width, int& height) {
  jpeg_decompress_struct info;
  jpeg_error_mgr errors;
  info.err = jpeg_std_error(&errors);
  jpeg_create_decompress(&info);
  jpeg_mem_src(&info, reinterpret_cast<const unsigned char*>(file.data()), file.size());
  jpeg_read_header(&info, TRUE);
  info.out_color_space = JCS_RGB;
  info.scale_num = 1;
  info.scale_denom = static_cast<unsigned>(reduction);
  jpeg_start_decompress(&info);
  width = static_cast<int>(info.output_width);
  height = static_cast<int>(info.output_height);
  std::vector<uint8_t> pixels(static_cast<size_t>(width) * static_cast<size_t>(height) * 3);
  while (info.output_scanline < info.output_height) {
    JSAMPROW row = pixels.data() + size_t{info.output_scanline} * static_cast<size_t>(width) * 3;
    jpeg_read_scanlines(&info, &row, 1);
  }
  jpeg_destroy_decompress(&info);
  return pixels;
}

bool is_narrow(const JpegSpec& spec, int reduction) {
  if (spec.grey || spec.h != 2) return false;
  const bool half_chroma = reduction == 1 || spec.v == 1;  // its columns are doubled
  return spec.width <= 4 || (half_chroma && reduction < 8 && spec.width <= 4 * reduction);
}

}  // namespace

TEST_CASE("reduced transforms: vector code equals plain loops on every target, also where every range is left") {
  on_every_target([] {
    std::mt19937 random(7);
    for (int round = 0; round < 400; ++round) {
      const size_t count = 1 + random() % 6;
      std::vector<int16_t> tiles(count * kTileCoefficients);
      std::vector<uint16_t> quant(64);
      const int style = draw(random, 0, 4);
      const int limit = style == 4 ? 32767 : style == 3 ? 1023 : style == 0 ? 2000 : 60;
      for (auto& q : quant) q = static_cast<uint16_t>(draw(random, 1, style == 4 ? 65535 : style == 3 ? 255 : 20));
      for (size_t b = 0; b < count * kBlocksPerTile; ++b) {
        for (size_t k = 0; k < 64; ++k) {
          const bool present = style == 0 ? k == 0 : style == 1 ? draw(random, 0, 9) == 0 : draw(random, 0, 2) > 0;
          if (present) tiles[tile_block_begin(b) + tile_offset(k)] = static_cast<int16_t>(draw(random, -limit, limit));
        }
      }
      const size_t stride = 16 * count + 7;
      std::vector<uint8_t> got(stride * 4), wanted(stride * 4);  // what is written beyond shows
      idct_tiles_4x4(tiles.data(), count, quant.data(), got.data(), stride);
      reference::idct_tiles_4x4(tiles.data(), count, quant.data(), wanted.data(), stride);
      REQUIRE(got == wanted);
      idct_tiles_2x2(tiles.data(), count, quant.data(), got.data(), stride);
      reference::idct_tiles_2x2(tiles.data(), count, quant.data(), wanted.data(), stride);
      REQUIRE(got == wanted);
      idct_tiles_1x1(tiles.data(), count, quant.data(), got.data());
      reference::idct_tiles_1x1(tiles.data(), count, quant.data(), wanted.data());
      REQUIRE(got == wanted);
    }
  });
}

TEST_CASE("the library's way at 1/2, 1/4 and 1/8 is libjpeg's scaled decoding, of progressive files too") {
  std::mt19937 random(3);
  PixelBuffer storage;
  for (int i = 0; i < 60; ++i) {
    JpegSpec spec = random_spec(random, 70);
    spec.progressive = i % 3 == 0;
    const File file = make_jpeg(spec);
    const ImageHeader header{ImageFormat::jpeg, spec.width, spec.height};
    for (const int reduction : {2, 4, 8}) {
      int width = 0;
      int height = 0;
      const std::vector<uint8_t> wanted = scaled_by_libjpeg(file, reduction, width, height);
      REQUIRE(width == reduced_size(spec.width, reduction));
      REQUIRE(height == reduced_size(spec.height, reduction));
      Decoder decoder{DecodeLimits{}, DecoderOptions{.own_jpeg = i % 2 == 0}};
      const Box box = random_box(random, width, height);
      PixelView got;
      REQUIRE(decoder.decode(file, header, box, storage, got, {.reduction = reduction}).ok());
      for (int y = 0; y < box.height; ++y) {
        const uint8_t* const row = &wanted[static_cast<size_t>((y + box.y) * width + box.x) * 3];
        REQUIRE(std::memcmp(got.row(y), row, static_cast<size_t>(box.width) * 3) == 0);
      }
    }
  }
}

TEST_CASE("regular files of all subsamplings and sizes are ours at 1/2, 1/4 and 1/8, and equal the library's") {
  const unsigned seed = full() ? std::random_device{}() : 20261121U;
  MESSAGE("seed " << seed);
  std::mt19937 random(seed);
  Comparison comparison;
  int64_t narrow = 0;
  int64_t boxes = 0;
  const int files = full() ? 20000 : 200;
  for (int i = 0; i < files; ++i) {
    const JpegSpec spec = random_spec(random, i % 4 == 0 ? 20 : 99);
    const File file = make_jpeg(spec);
    const ImageHeader header{ImageFormat::jpeg, spec.width, spec.height};
    for (const int reduction : {2, 4, 8}) {
      for (int k = 0; k < 3; ++k, ++boxes) {
        Box box = reduced_box(random, header, reduction);
        if (k == 0) box = {0, 0, reduced_size(spec.width, reduction), reduced_size(spec.height, reduction)};
        INFO("file ", i, " ", spec.width, "x", spec.height, " h ", spec.h, " v ", spec.v, " grey ", spec.grey, " q ",
             spec.quality, " 1/", reduction, " box ", box.x, " ", box.y, " ", box.width, " ", box.height);
        const int64_t before = comparison.counts().library_jpeg;
        REQUIRE(comparison.compare(file, box, header, reduction) == Comparison::Result::good);
        narrow += is_narrow(spec, reduction) ? 1 : 0;
#if defined(__x86_64__)
        REQUIRE((comparison.counts().library_jpeg > before) == is_narrow(spec, reduction));
#endif
      }
    }
  }
  MESSAGE(boxes << " boxes, all equal; " << narrow << " by the library, as their chroma has two columns or less");
  CHECK(narrow < boxes / 4);
}

TEST_CASE("larger files, with an index and without, give the same bytes at every size") {
  std::mt19937 random(5);
  Comparison comparison;
  const int files = full() ? 10 : 4;
  for (int i = 0; i < files; ++i) {
    JpegSpec spec = random_spec(random, 67);
    spec.width = draw(random, 300, 900);
    spec.height = draw(random, 300, 700);
    spec.quality = draw(random, 60, 98);
    if (i % 2 == 0) spec.restart = 0;
    const File file = make_jpeg(spec);
    const ImageHeader header{ImageFormat::jpeg, spec.width, spec.height};
    SideIndex index;
    REQUIRE(build_side_index(file, {.interval = draw(random, 1, 12)}, index));
    for (const int reduction : {1, 2, 4, 8}) {
      for (int k = 0; k < 3; ++k) {
        INFO("file ", i, " 1/", reduction);
        const Box box = reduced_box(random, header, reduction);
        REQUIRE(comparison.compare(file, box, header, reduction) == Comparison::Result::good);
        REQUIRE(comparison.compare(file, box, header, reduction, &index) == Comparison::Result::good);
      }
    }
  }
#if defined(__x86_64__)
  CHECK(comparison.counts().library_jpeg == 0);
  CHECK(comparison.counts().indexed_jpeg == 12 * files);
#endif
}

TEST_CASE("any coefficients, also such as leave every range, give the library's pixels at every size") {
  std::mt19937 random(31);
  Comparison comparison;
  const ImageHeader header{ImageFormat::jpeg, 37, 29};
  for (int i = 0; i < (full() ? 4000 : 80); ++i) {
    const File file = make_from_coefficients(random, i % 2 == 0);
    for (const int reduction : {2, 4, 8}) {
      INFO("file ", i, " 1/", reduction);
      const Box whole{0, 0, reduced_size(37, reduction), reduced_size(29, reduction)};
      REQUIRE(comparison.compare(file, whole, header, reduction) == Comparison::Result::good);
      REQUIRE(comparison.compare(file, reduced_box(random, header, reduction), header, reduction) ==
              Comparison::Result::good);
    }
  }
#if defined(__x86_64__)
  CHECK(comparison.counts().library_jpeg == 0);
#endif
}

TEST_CASE("damaged files have the same status, reason and bytes both ways") {
  const unsigned seed = full() ? std::random_device{}() : 42U;
  MESSAGE("seed " << seed);
  std::mt19937 random(seed);
  Comparison comparison;
  int good = 0;
  int bad = 0;
  const int rounds = full() ? 1'000'000 : 2'000;
  File base;
  for (int round = 0; round < rounds; ++round) {
    if (round % 50 == 0) base = make_jpeg(random_spec(random, 67));
    File file = base;
    damage(random, file);
    ImageHeader header;
    if (!read_header(file, {}, header).ok() || header.width * int64_t{header.height} > 100000) continue;
    const int reduction = 2 << random() % 3;
    INFO("round ", round, " 1/", reduction);
    const auto result = comparison.compare(file, reduced_box(random, header, reduction), header, reduction);
    (result == Comparison::Result::good ? good : bad)++;
  }
  MESSAGE(good << " decoded, " << bad << " refused; " << comparison.counts().own_jpeg << " by our decoder");
  CHECK(good > rounds / 4);
  CHECK(bad > rounds / 100);
#if defined(__x86_64__)
  CHECK(comparison.counts().own_jpeg > rounds / 10);
#endif
}

TEST_CASE("a file cut at any byte has the library's status for rows that end anywhere") {
  Comparison comparison;
  int good = 0;
  int bad = 0;
  for (const JpegSpec& spec : {JpegSpec{}, JpegSpec{.h = 1, .v = 1, .optimize = true},
                               JpegSpec{.h = 2, .v = 1, .restart = 2}, JpegSpec{.h = 1, .v = 2}}) {
    const File file = make_jpeg(spec);
    for (size_t cut = file.size() / 3; cut <= file.size(); cut += full() ? 3 : 10) {
      const File part(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(cut));
      ImageHeader header;
      if (!read_header(part, {}, header).ok()) continue;
      for (const int reduction : {2, 4, 8}) {
        const int height = reduced_size(header.height, reduction);
        for (int last = 0; last < height; last += 1 + last / 4) {
          INFO("cut ", cut, " of ", file.size(), ", last row ", last, " 1/", reduction);
          const Box box{1, last / 2, 3, last + 1 - last / 2};
          const auto result = comparison.compare(part, box, header, reduction);
          (result == Comparison::Result::good ? good : bad)++;
        }
      }
    }
  }
  MESSAGE(good << " good, " << bad << " bad");
  CHECK(good > 1000);
  CHECK(bad > 1000);
}

TEST_CASE("judged at full size: that status, by either decoder, with the pixels of the scaled decode") {
  const unsigned seed = full() ? std::random_device{}() : 43U;
  MESSAGE("seed " << seed);
  std::mt19937 random(seed);
  JpegDecoder own{DecodeLimits{}, DecoderOptions{.learned_interval = 3}};
  JpegDecoder library{DecodeLimits{}, DecoderOptions{.own_jpeg = false}};
  PixelBuffer storage[3];
  PixelView got;
  PixelView other;
  PixelView unused;
  int good = 0;
  int bad = 0;
  int otherwise = 0;  // than the scaled decode says
  int learned = 0;
  const int rounds = full() ? 200'000 : 2'000;
  File base;
  SideIndex index;
  for (int round = 0; round < rounds; ++round) {
    if (round % 50 == 0) {
      JpegSpec spec = random_spec(random, 99);
      spec.progressive = round % 200 == 0;
      base = make_jpeg(spec);
    }
    File file = base;
    if (round % 10 != 0) damage(random, file);
    if (round % 3 == 0) file.resize(file.size() / 2 + random() % (file.size() / 2));
    ImageHeader header;
    if (!read_header(file, {}, header).ok() || header.width * int64_t{header.height} > 100000) continue;
    const int reduction = 2 << random() % 3;
    const Box judged = random_box(random, header.width, header.height);
    const Box box{judged.x / reduction, judged.y / reduction,
                  reduced_size(judged.x + judged.width, reduction) - judged.x / reduction,
                  reduced_size(judged.y + judged.height, reduction) - judged.y / reduction};
    INFO("round ", round, " 1/", reduction, " of ", header.width, "x", header.height, " judged ", judged.x, " ",
         judged.y, " ", judged.width, " ", judged.height);
    bool indexed = random() % 2 == 0 && build_side_index(file, {.interval = draw(random, 1, 12)}, index);
    if (!indexed) {  // what the way to some row has taught
      index = {};
      const Box above{0, 0, 1, 1 + draw(random, 0, header.height - 1)};
      (void)own.decode(file, header, above, storage[2], unused, {.learned = &index});
      indexed = !index.empty();
      learned += indexed ? 1 : 0;
    }
    const DecodeOptions decode_options{.index = indexed ? &index : nullptr, .reduction = reduction, .judged = judged};
    const SampleStatus status = own.decode(file, header, box, storage[0], got, decode_options);
    const SampleStatus by_library =
        library.decode(file, header, box, storage[1], other, {.reduction = reduction, .judged = judged});
    const SampleStatus wanted = own.decode_reference(file, header, judged, storage[2], unused);
    REQUIRE(status.ok() == wanted.ok());
    REQUIRE(status.reason == wanted.reason);
    REQUIRE(by_library.reason == wanted.reason);
    (status.ok() ? good : bad)++;
    if (!status.ok()) continue;
    for (int y = 0; y < box.height; ++y) {
      REQUIRE(std::memcmp(got.row(y), other.row(y), static_cast<size_t>(box.width) * 3) == 0);
    }
    PixelView scaled;
    if (!own.decode_reference(file, header, box, storage[2], scaled, reduction).ok()) {
      ++otherwise;
      continue;
    }
    for (int y = 0; y < box.height; ++y) {
      REQUIRE(std::memcmp(got.row(y), scaled.row(y), static_cast<size_t>(box.width) * 3) == 0);
    }
  }
  MESSAGE(good << " good, " << bad << " bad, " << otherwise << " that the scaled decode would have refused");
  CHECK(good > rounds / 4);
  CHECK(bad > rounds / 20);
  CHECK(otherwise > 0);
  CHECK(learned > rounds / 20);
}

TEST_CASE("a reduction is for JPEG files, and one of 2, 4 and 8") {
  Decoder decoder{DecodeLimits{}};
  PixelBuffer storage;
  PixelView pixels;
  const File file = make_jpeg({});
  CHECK_THROWS_AS(decoder.decode(file, {ImageFormat::jpeg, 40, 33}, {0, 0, 1, 1}, storage, pixels, {.reduction = 3}),
                  Error);
  CHECK_THROWS_AS(decoder.decode(file, {ImageFormat::bmp, 40, 33}, {0, 0, 1, 1}, storage, pixels, {.reduction = 2}),
                  Error);
  // The box is one of the reduced image.
  CHECK_THROWS_AS(decoder.decode(file, {ImageFormat::jpeg, 40, 33}, {0, 0, 21, 1}, storage, pixels, {.reduction = 2}),
                  Error);
  CHECK(decoder.decode(file, {ImageFormat::jpeg, 40, 33}, {0, 16, 20, 1}, storage, pixels, {.reduction = 2}).ok());
}

TEST_CASE("a turned file at a reduced size is the reduced file turned") {
  Decoder decoder{DecodeLimits{}};
  const File file = make_jpeg({.width = 45, .height = 33});
  PixelBuffer plain_storage;
  PixelView plain;
  REQUIRE(
      decoder.decode(file, {ImageFormat::jpeg, 45, 33}, {0, 0, 12, 9}, plain_storage, plain, {.reduction = 4}).ok());
  PixelBuffer storage;
  PixelView turned;
  const ImageHeader oriented{ImageFormat::jpeg, 33, 45, 6};  // a quarter turn to the right
  REQUIRE(decoder.decode(file, oriented, {2, 3, 7, 8}, storage, turned, {.reduction = 4}).ok());
  for (int y = 0; y < 8; ++y) {
    for (int x = 0; x < 7; ++x) {
      REQUIRE(std::memcmp(turned.row(y) + 3 * x, plain.row(8 - (x + 2)) + 3 * (y + 3), 3) == 0);
    }
  }
}

}  // namespace reduced_test
