// Our own decoder of baseline JPEG: equal to libjpeg-turbo in every byte and every verdict, on regular, extreme and
// damaged files; its vector code equal to plain loops on every target of this CPU.
#include "runtime/decode/baseline_decoder.h"

#include <doctest/doctest.h>

#include <hwy/highway.h>
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "runtime/decode/coefficient_tiles.h"
#include "runtime/decode/decoder.h"
#include "runtime/decode/jpeg_decoder.h"
#include "runtime/decode/jpeg_kernels.h"
#include "tests/decode/jpeg_files.h"

namespace {

using namespace penstock;
using penstock_test::JpegSpec;
using penstock_test::draw;
using penstock_test::make_jpeg;
using penstock_test::random_spec;
using File = std::vector<std::byte>;

bool full() {
  return std::getenv("PENSTOCK_FULL") != nullptr;
}

Box random_box(std::mt19937& random, int width, int height) {
  const int w = draw(random, 1, width);
  const int h = draw(random, 1, height);
  return {draw(random, 0, width - w), draw(random, 0, height - h), w, h};
}

// The own way against the reference: same verdict, same bytes.
class Comparison {
 public:
  enum class Result { refused, good, bad };

  Result compare(const File& file, const Box& box, const ImageHeader& header) {
    PixelView got;
    PixelView wanted;
    const Verdict own = own_.decode(file, header, box, got_storage_, got);
    const Verdict reference = reference_.decode_reference(file, header, box, wanted_storage_, wanted);
    REQUIRE(own.ok() == reference.ok());
    REQUIRE(own.reason == reference.reason);
    if (!own.ok()) return Result::bad;
    REQUIRE(got.width == box.width);
    REQUIRE(got.height == box.height);
    for (int y = 0; y < box.height; ++y) {
      const auto bytes = static_cast<size_t>(box.width) * 3;
      REQUIRE(std::memcmp(got.row(y), wanted.row(y), bytes) == 0);
    }
    return Result::good;
  }
  Result compare(const File& file, const Box& box) {
    ImageHeader header;
    REQUIRE(read_header(file, {}, header).ok());
    return compare(file, box, header);
  }
  const DecodeCounts& counts() const { return own_.counts(); }

 private:
  JpegDecoder own_{DecodeLimits{}};
  JpegDecoder reference_{DecodeLimits{}, DecodeOptions{.own_jpeg = false}};
  PixelBuffer got_storage_;
  PixelBuffer wanted_storage_;
};

// A file with the given coefficients in every block, and quantisers as large as eight bits allow.
File make_from_coefficients(std::mt19937& random, bool extreme) {
  const File base = make_jpeg({.width = 37, .height = 29, .h = draw(random, 1, 2), .v = draw(random, 1, 2)});
  jpeg_decompress_struct in;
  jpeg_compress_struct out;
  jpeg_error_mgr errors;
  in.err = out.err = jpeg_std_error(&errors);
  jpeg_create_decompress(&in);
  jpeg_create_compress(&out);
  jpeg_mem_src(&in, reinterpret_cast<const unsigned char*>(base.data()), base.size());
  jpeg_read_header(&in, TRUE);
  jvirt_barray_ptr* const arrays = jpeg_read_coefficients(&in);
  const int limit = extreme ? 1023 : draw(random, 1, 300);
  const int sparse = draw(random, 1, 12);
  for (int c = 0; c < in.num_components; ++c) {
    for (JDIMENSION row = 0; row < in.comp_info[c].height_in_blocks; ++row) {
      JBLOCKARRAY blocks = in.mem->access_virt_barray(reinterpret_cast<j_common_ptr>(&in), arrays[c], row, 1, TRUE);
      for (JDIMENSION column = 0; column < in.comp_info[c].width_in_blocks; ++column) {
        for (int k = 0; k < DCTSIZE2; ++k) {
          blocks[0][column][k] =
              static_cast<JCOEF>(k == 0 || draw(random, 1, sparse) == 1 ? draw(random, -limit, limit) : 0);
        }
      }
    }
  }
  for (JQUANT_TBL* table : in.quant_tbl_ptrs) {
    if (table == nullptr) continue;
    for (auto& q : table->quantval) q = static_cast<UINT16>(extreme ? draw(random, 1, 255) : draw(random, 1, 16));
  }
  for (int c = 0; c < in.num_components; ++c) {  // libjpeg compares them with the copies that decoding took
    *in.comp_info[c].quant_table = *in.quant_tbl_ptrs[in.comp_info[c].quant_tbl_no];
  }
  jpeg_copy_critical_parameters(&in, &out);
  unsigned char* bytes = nullptr;
  unsigned long size = 0;  // NOLINT(google-runtime-int): libjpeg's type
  jpeg_mem_dest(&out, &bytes, &size);
  out.optimize_coding = TRUE;
  jpeg_write_coefficients(&out, arrays);
  jpeg_finish_compress(&out);
  File file(size);
  std::memcpy(file.data(), bytes, size);
  jpeg_destroy_compress(&out);
  jpeg_destroy_decompress(&in);
  std::free(bytes);
  return file;
}

void damage(std::mt19937& random, File& file) {
  const size_t from = random() % 3 == 0 ? 2 : file.size() / 2;  // mostly the entropy-coded part
  for (unsigned n = 1 + random() % 3; n > 0 && file.size() > 100; --n) {
    const size_t at = from + random() % (file.size() - from);
    const auto place = file.begin() + static_cast<std::ptrdiff_t>(at);
    switch (random() % 7) {
      case 0:
        *place = static_cast<std::byte>(random() & 255);
        break;
      case 1:
        *place ^= static_cast<std::byte>(1U << random() % 8);
        break;
      case 2:
        file.erase(place);
        break;
      case 3:
        file.insert(place, static_cast<std::byte>(random() & 255));
        break;
      case 4:  // a marker, a stuffed byte, or fill
        *place = std::byte{0xFF};
        if (at + 1 < file.size() && random() % 2 == 0) file[at + 1] = static_cast<std::byte>(0xD0 + random() % 10);
        break;
      case 5:
        if (random() % 4 == 0) file.resize(at);
        break;
      default:  // cut near the end: what libjpeg reads ahead decides
        file.resize(file.size() - random() % 12);
    }
    if (from >= file.size()) break;
  }
}

// Runs `body` on every target that this CPU has.
template <class Body>
void on_every_target(Body body) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().DeInit();
    INFO("target ", hwy::TargetName(target));
    body();
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().DeInit();
}

}  // namespace

TEST_CASE("vector kernels equal plain loops on every target") {
  on_every_target([] {
    std::mt19937 random(99);
    for (int round = 0; round < 300; ++round) {
      const size_t count = 1 + random() % 5;
      std::vector<int16_t> tiles(count * tile_coefficients);
      std::vector<uint16_t> quant(64);
      const int style = draw(random, 0, 4);  // from sparse pictures to numbers that leave every range
      const int limit = style == 4 ? 32767 : style == 3 ? 1023 : style == 0 ? 2000 : 60;
      for (auto& q : quant) q = static_cast<uint16_t>(draw(random, 1, style == 4 ? 65535 : style == 3 ? 255 : 20));
      for (size_t b = 0; b < count * blocks_per_tile; ++b) {
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
      const size_t room = n + 1 + 2 * jpeg_row_padding;
      std::vector<uint8_t> a(room), b(room), c(room);
      for (auto* row : {&a, &b, &c}) {
        for (auto& v : *row) v = static_cast<uint8_t>(style == 1 ? (random() & 1) * 255 : random());
      }
      const uint8_t* const near = a.data() + jpeg_row_padding;
      const uint8_t* const far = b.data() + jpeg_row_padding;
      const uint8_t* const other = c.data() + jpeg_row_padding;
      std::vector<uint8_t> x(3 * n + 6 * jpeg_row_padding), y(x.size());
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
      grey_row_to_rgb(near, n, x.data());
      reference::grey_row_to_rgb(near, n, y.data());
      REQUIRE(same(3 * n));
    }
  });
}

TEST_CASE("every pair of chroma values becomes the colour that libjpeg's tables say") {
  for (int cb = 0; cb < 256; ++cb) {
    uint8_t y[256 + 2 * jpeg_row_padding];
    uint8_t b[256 + 2 * jpeg_row_padding];
    uint8_t r[256 + 2 * jpeg_row_padding];
    uint8_t got[3 * (256 + jpeg_row_padding)];
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
  const int files = full() ? 20000 : 700;
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

TEST_CASE("larger files, whose scans do not fit into one stretch of bytes") {
  std::mt19937 random(5);
  Comparison comparison;
  for (int i = 0; i < 16; ++i) {
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
  for (int i = 0; i < (full() ? 4000 : 250); ++i) {
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
  for (const JpegSpec& spec : {JpegSpec{.progressive = true}, JpegSpec{.arithmetic = true}, JpegSpec{.h = 4, .v = 1}}) {
    REQUIRE(decoder.decode(make_jpeg(spec), header, box, storage, pixels).ok());
  }
  CHECK(decoder.counts().own_jpeg == 0);
  CHECK(decoder.counts().library_jpeg == 3);
  JpegDecoder library{DecodeLimits{}, DecodeOptions{.own_jpeg = false}};
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

TEST_CASE("damaged files: same verdict, same reason, same bytes as the reference") {
  const unsigned seed = full() ? std::random_device{}() : 42U;
  MESSAGE("seed " << seed);
  std::mt19937 random(seed);
  Comparison comparison;
  int good = 0;
  int bad = 0;
  const int rounds = full() ? 1'000'000 : 12'000;
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

TEST_CASE("a file cut at any byte has the reference's verdict for rows that end anywhere") {
  Comparison comparison;
  int good = 0;
  int bad = 0;
  for (const JpegSpec& spec :
       {JpegSpec{}, JpegSpec{.h = 1, .v = 1, .optimize = true}, JpegSpec{.h = 2, .v = 1, .restart = 2},
        JpegSpec{.h = 1, .v = 2}, JpegSpec{.restart = 1}, JpegSpec{.grey = true}}) {
    const File file = make_jpeg(spec);
    for (size_t cut = file.size() / 3; cut <= file.size(); ++cut) {
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
