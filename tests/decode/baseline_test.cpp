// Our own decoder of baseline JPEG: equal to libjpeg-turbo in every byte and every status, on regular, extreme and
// damaged files; its vector code equal to plain loops on every target of this CPU.
#include "runtime/decode/jpeg/own_jpeg_decoder.h"

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
#include "tests/decode/jpeg_comparison.h"
#include "tests/decode/jpeg_files.h"

namespace {

using namespace penstock;
using namespace penstock_test;

}  // namespace

TEST_CASE("vector kernels equal plain loops on every target") {
  on_every_target([] {
    std::mt19937 random(99);
    for (int round = 0; round < 300; ++round) {
      const size_t count = 1 + random() % 5;
      std::vector<int16_t> tiles(count * kTileCoefficients);
      std::vector<uint16_t> quant(64);
      const int style = draw(random, 0, 4);  // from sparse pictures to numbers that leave every range
      const int limit = style == 4 ? 32767 : style == 3 ? 1023 : style == 0 ? 2000 : 60;
      for (auto& q : quant) q = static_cast<uint16_t>(draw(random, 1, style == 4 ? 65535 : style == 3 ? 255 : 20));
      for (size_t b = 0; b < count * kBlocksPerTile; ++b) {
        for (size_t k = 0; k < 64; ++k) {
          const bool present = style == 0 ? k == 0 : style == 1 ? draw(random, 0, 9) == 0 : draw(random, 0, 2) > 0;
          if (present) tiles[tile_block_begin(b) + tile_offset(k)] = static_cast<int16_t>(draw(random, -limit, limit));
        }
      }
      const size_t stride = 32 * count + 7;
      std::vector<uint8_t> got(stride * 8), wanted(stride * 8);
      idct_tiles(tiles.data(), count, quant.data(), got.data(), stride);
      reference::idct_tiles(tiles.data(), count, quant.data(), wanted.data(), stride);
      REQUIRE(got == wanted);

      const size_t n = 1 + random() % 150;
      const size_t room = n + 1 + 2 * kJpegRowPadding;
      std::vector<uint8_t> a(room), b(room), c(room);
      for (auto* row : {&a, &b, &c}) {
        for (auto& v : *row) v = static_cast<uint8_t>(style == 1 ? (random() & 1) * 255 : random());
      }
      const uint8_t* const near = a.data() + kJpegRowPadding;
      const uint8_t* const far = b.data() + kJpegRowPadding;
      const uint8_t* const other = c.data() + kJpegRowPadding;
      std::vector<uint8_t> x(3 * n + 6 * kJpegRowPadding), y(x.size());
      const auto same = [&](size_t bytes) {
        return std::equal(x.begin(), x.begin() + static_cast<long>(bytes), y.begin());
      };
      upsample_2x1(near, n, x.data());
      reference::upsample_2x1(near, n, y.data());
      REQUIRE(same(2 * n));
      upsample_2x2(near, far, n, x.data());
      reference::upsample_2x2(near, far, n, y.data());
      REQUIRE(same(2 * n));
      for (const int bias : {1, 2}) {
        upsample_1x2(near, far, bias, n, x.data());
        reference::upsample_1x2(near, far, bias, n, y.data());
        REQUIRE(same(n));
      }
      ycc_row_to_rgb(near, far, other, n, x.data());
      reference::ycc_row_to_rgb(near, far, other, n, y.data());
      REQUIRE(same(3 * n));
      const size_t plane = n + kJpegRowPadding;
      ycc_row_to_planes(near, far, other, n, {x.data(), x.data() + plane, x.data() + 2 * plane});
      reference::ycc_row_to_planes(near, far, other, n, {y.data(), y.data() + plane, y.data() + 2 * plane});
      for (const size_t from : {size_t{0}, plane, 2 * plane}) {
        REQUIRE(std::memcmp(x.data() + from, y.data() + from, n) == 0);
      }
      grey_row_to_rgb(near, n, x.data());
      reference::grey_row_to_rgb(near, n, y.data());
      REQUIRE(same(3 * n));
    }
  });
}

TEST_CASE("every pair of chroma values becomes the colour that libjpeg's tables say") {
  for (int cb = 0; cb < 256; ++cb) {
    uint8_t y[256 + 2 * kJpegRowPadding];
    uint8_t b[256 + 2 * kJpegRowPadding];
    uint8_t r[256 + 2 * kJpegRowPadding];
    uint8_t got[3 * (256 + kJpegRowPadding)];
    uint8_t wanted[3 * 256];
    for (const int luma : {0, 128, 255}) {
      for (int cr = 0; cr < 256; ++cr) {
        y[cr] = static_cast<uint8_t>(luma);
        b[cr] = static_cast<uint8_t>(cb);
        r[cr] = static_cast<uint8_t>(cr);
      }
      ycc_row_to_rgb(y, b, r, 256, got);
      reference::ycc_row_to_rgb(y, b, r, 256, wanted);
      REQUIRE(std::memcmp(got, wanted, sizeof wanted) == 0);
      uint8_t planes[3][256 + kJpegRowPadding];
      ycc_row_to_planes(y, b, r, 256, {planes[0], planes[1], planes[2]});
      for (size_t i = 0; i < sizeof wanted; ++i) REQUIRE(planes[i % 3][i / 3] == wanted[i]);
    }
  }
}

TEST_CASE("regular baseline files are ours, and equal libjpeg-turbo's for any box") {
  const unsigned seed = full() ? std::random_device{}() : 20261121U;
  MESSAGE("seed " << seed);
  std::mt19937 random(seed);
  Comparison comparison;
  int narrow = 0;  // chroma of two columns or less is libjpeg-turbo's
  int64_t others = 0;
  const int files = full() ? 20000 : 250;
  for (int i = 0; i < files; ++i) {
    const JpegSpec spec = random_spec(random, 67);
    const File file = make_jpeg(spec);
    for (int k = 0; k < 6; ++k) {
      const Box box = k == 0 ? Box{0, 0, spec.width, spec.height} : random_box(random, spec.width, spec.height);
      INFO("file ", i, " ", spec.width, "x", spec.height, " h ", spec.h, " v ", spec.v, " q ", spec.quality, " box ",
           box.x, " ", box.y, " ", box.width, " ", box.height);
      const int64_t before = comparison.counts().library_jpeg;
      REQUIRE(comparison.compare(file, box) == Comparison::Result::good);
      const bool is_narrow = !spec.grey && spec.h == 2 && spec.width <= 4;
      narrow += is_narrow ? 1 : 0;
      others += is_narrow ? 0 : comparison.counts().library_jpeg - before;
    }
  }
  MESSAGE(comparison.counts().own_jpeg << " boxes by our decoder, " << comparison.counts().library_jpeg
                                       << " by the library, all equal");
#if defined(__x86_64__)
  CHECK(others == 0);
  CHECK(comparison.counts().own_jpeg == int64_t{files} * 6 - narrow);
#endif
}

TEST_CASE("larger files, whose scans do not fit into one run of bytes") {
  std::mt19937 random(5);
  Comparison comparison;
  for (int i = 0; i < (full() ? 16 : 5); ++i) {
    JpegSpec spec = random_spec(random, 67);
    spec.width = draw(random, 500, 900);
    spec.height = draw(random, 400, 700);
    spec.quality = draw(random, 60, 100);
    const File file = make_jpeg(spec);
    for (int k = 0; k < 4; ++k) {
      REQUIRE(comparison.compare(file, random_box(random, spec.width, spec.height)) == Comparison::Result::good);
    }
  }
#if defined(__x86_64__)
  CHECK(comparison.counts().library_jpeg == 0);
#endif
}

TEST_CASE("any coefficients, also such as leave every range, give libjpeg-turbo's pixels") {
  std::mt19937 random(31);
  Comparison comparison;
  for (int i = 0; i < (full() ? 4000 : 80); ++i) {
    const File file = make_from_coefficients(random, i % 2 == 0);
    INFO("file ", i);
    REQUIRE(comparison.compare(file, {0, 0, 37, 29}) == Comparison::Result::good);
    REQUIRE(comparison.compare(file, random_box(random, 37, 29)) == Comparison::Result::good);
  }
#if defined(__x86_64__)
  CHECK(comparison.counts().library_jpeg == 0);
#endif
}

TEST_CASE("what is not ours goes to the library, and so does everything when asked") {
  PixelBuffer storage;
  PixelView pixels;
  const Box box{0, 0, 40, 33};
  const ImageHeader header{ImageFormat::jpeg, 40, 33};
  JpegDecoder decoder{DecodeLimits{}};
  for (const JpegSpec& spec :
       {JpegSpec{.progressive = true, .arithmetic = true}, JpegSpec{.arithmetic = true}, JpegSpec{.h = 4, .v = 1}}) {
    REQUIRE(decoder.decode(make_jpeg(spec), header, box, storage, pixels).ok());
  }
  CHECK(decoder.counts().own_jpeg == 0);
  CHECK(decoder.counts().library_jpeg == 3);
  JpegDecoder library{DecodeLimits{}, DecoderOptions{.own_jpeg = false}};
  REQUIRE(library.decode(make_jpeg({}), header, box, storage, pixels).ok());
  CHECK(library.counts().own_jpeg == 0);
  setenv("PENSTOCK_DECODE", "library", 1);
  Decoder by_environment{DecodeLimits{}};
  unsetenv("PENSTOCK_DECODE");
  REQUIRE(by_environment.decode(make_jpeg({}), header, box, storage, pixels).ok());
  CHECK(by_environment.counts().own_jpeg == 0);
  CHECK(by_environment.counts().library_jpeg == 1);
}

TEST_CASE("bytes before restart markers are warnings of libjpeg's, and too many of them refuse the file") {
  Comparison comparison;
  for (const int side : {40, 120}) {  // 25 and 225 restarts; the limit is 100 warnings
    const File file = make_jpeg({.width = side, .height = side, .h = 1, .v = 1, .restart = 1});
    File longer;
    for (size_t i = 0; i < file.size(); ++i) {
      const auto next = i + 1 < file.size() ? std::to_integer<unsigned>(file[i + 1]) : 0;
      if (file[i] == std::byte{0xFF} && next >= 0xD0 && next <= 0xD7)
        longer.resize(longer.size() + 12);  // more than libjpeg reads ahead
      longer.push_back(file[i]);
    }
    const auto result = comparison.compare(longer, {0, 0, side, side});
    CHECK(result == (side == 40 ? Comparison::Result::good : Comparison::Result::bad));
    CHECK(comparison.compare(file, {0, 0, side, side}) == Comparison::Result::good);
  }
}

TEST_CASE("damaged files: same status, same reason, same bytes as the reference") {
  const unsigned seed = full() ? std::random_device{}() : 42U;
  MESSAGE("seed " << seed);
  std::mt19937 random(seed);
  Comparison comparison;
  int good = 0;
  int bad = 0;
  const int rounds = full() ? 1'000'000 : 4'000;
  File base;
  for (int round = 0; round < rounds; ++round) {
    if (round % 50 == 0) {
      JpegSpec spec = random_spec(random, 67);
      if (random() % 10 == 0) spec.progressive = true;
      base = make_jpeg(spec);
    }
    File file = base;
    damage(random, file);
    ImageHeader header;
    if (!read_header(file, {}, header).ok() || header.width * int64_t{header.height} > 100000) continue;
    INFO("round ", round);
    const auto result = comparison.compare(file, random_box(random, header.width, header.height), header);
    (result == Comparison::Result::good ? good : bad)++;
  }
  MESSAGE(good << " decoded, " << bad << " refused; " << comparison.counts().own_jpeg
               << " by our decoder, all as libjpeg");
  CHECK(good > rounds / 4);
  CHECK(bad > rounds / 100);
#if defined(__x86_64__)
  CHECK(comparison.counts().own_jpeg > rounds / 10);
#endif
}

TEST_CASE("a file cut at any byte has the reference's status for rows that end anywhere") {
  Comparison comparison;
  int good = 0;
  int bad = 0;
  for (const JpegSpec& spec :
       {JpegSpec{}, JpegSpec{.h = 1, .v = 1, .optimize = true}, JpegSpec{.h = 2, .v = 1, .restart = 2},
        JpegSpec{.h = 1, .v = 2}, JpegSpec{.restart = 1}, JpegSpec{.grey = true}}) {
    const File file = make_jpeg(spec);
    for (size_t cut = file.size() / 3; cut <= file.size(); cut += full() ? 1 : 5) {
      const File part(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(cut));
      ImageHeader header;
      if (!read_header(part, {}, header).ok()) continue;
      for (const int last : {0, 7, 8, 12, 13, 14, 15, 16, 29, 30, 31, 32}) {
        INFO("cut ", cut, " of ", file.size(), ", last row ", last);
        const auto result = comparison.compare(part, {5, last / 2, 20, last + 1 - last / 2}, header);
        (result == Comparison::Result::good ? good : bad)++;
      }
    }
  }
  MESSAGE(good << " good, " << bad << " bad");
  CHECK(good > 1000);
  CHECK(bad > 1000);
}
