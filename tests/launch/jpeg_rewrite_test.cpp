// JPEG files written anew without loss: the same pixels, all segments, and what could change is left alone.
#include "launch/jpeg_rewrite.h"

#include <doctest/doctest.h>

#include <cstring>

#include "runtime/decode/decoder.h"
#include "runtime/decode/orientation.h"
#include "tests/decode/jpeg_files.h"
#include "tests/transforms/exif_files.h"

using namespace penstock;
using penstock_test::JpegSpec;
using penstock_test::make_jpeg;

namespace {

using Bytes = std::vector<std::byte>;

std::vector<uint8_t> pixels_of(const Bytes& file) {
  const DecodeLimits limits;
  ImageHeader header;
  REQUIRE(read_header(file, limits, header).ok());
  Decoder decoder(limits);
  PixelBuffer storage;
  PixelView view;
  REQUIRE(decoder.decode(file, header, {0, 0, header.width, header.height}, storage, view).ok());
  std::vector<uint8_t> out;
  for (int y = 0; y < view.height; ++y) out.insert(out.end(), view.row(y), view.row(y) + view.width * 3);
  return out;
}

std::string why_not(const Bytes& file) {
  Bytes fresh;
  const std::string why = rewrite_jpeg(file, fresh);
  CHECK(why.empty() != fresh.empty());
  return why;
}

// The segments before the first scan with markers that `kept` chooses, one after the other.
Bytes segments(const Bytes& file) {
  Bytes out;
  for (size_t at = 2; at + 4 <= file.size();) {
    const int marker = std::to_integer<int>(file[at + 1]);
    if (marker == 0xDA) break;
    const size_t length = 2 + (std::to_integer<size_t>(file[at + 2]) << 8 | std::to_integer<size_t>(file[at + 3]));
    if ((marker >= 0xE0 && marker <= 0xEF) || marker == 0xFE) {
      out.insert(out.end(), file.begin() + static_cast<std::ptrdiff_t>(at),
                 file.begin() + static_cast<std::ptrdiff_t>(at + length));
    }
    at += length;
  }
  return out;
}

int frame_of(const Bytes& file) {
  for (size_t at = 2; at + 4 <= file.size();) {
    const int marker = std::to_integer<int>(file[at + 1]);
    if (marker >= 0xC0 && marker <= 0xC2) return marker;
    at += 2 + (std::to_integer<size_t>(file[at + 2]) << 8 | std::to_integer<size_t>(file[at + 3]));
  }
  return 0;
}

Bytes with_segment(const Bytes& jpeg, int marker, const std::string& content) {
  Bytes out(jpeg.begin(), jpeg.begin() + 2);
  const size_t length = content.size() + 2;
  for (const size_t c : {size_t{0xFF}, static_cast<size_t>(marker), length >> 8, length & 255}) {
    out.push_back(static_cast<std::byte>(c));
  }
  for (const char c : content) out.push_back(static_cast<std::byte>(c));
  out.insert(out.end(), jpeg.begin() + 2, jpeg.end());
  return out;
}

// Without its JFIF segment, so that ids and Adobe's segment tell the colours.
Bytes without_jfif(const Bytes& jpeg) {
  Bytes out(jpeg.begin(), jpeg.begin() + 2);
  out.insert(out.end(), jpeg.begin() + 20, jpeg.end());
  return out;
}

std::string adobe(char transform) {
  return std::string("Adobe\0\x64\0\0\0\0", 11) + transform;
}

}  // namespace

TEST_CASE("every progressive file, and every one with the usual tables, becomes baseline with the same pixels") {
  for (const bool progressive : {true, false}) {
    for (const bool grey : {false, true}) {
      for (const int h : {1, 2}) {
        for (const int v : {1, 2}) {
          for (const int side : {1, 8, 17, 70}) {
            const Bytes file = make_jpeg({.width = side,
                                          .height = side + 3,
                                          .h = h,
                                          .v = v,
                                          .progressive = progressive,
                                          .restart = side == 17 ? 2 : 0,
                                          .grey = grey});
            Bytes fresh;
            const std::string why = rewrite_jpeg(file, fresh);
            REQUIRE(why == "");
            CHECK(pixels_of(fresh) == pixels_of(file));
            CHECK(frame_of(fresh) == 0xC0);
            CHECK(segments(fresh) == segments(file));
            CHECK((progressive || fresh.size() < file.size()));
          }
        }
      }
    }
  }
}

TEST_CASE("segments go along as they are, in their order, and none comes in addition") {
  Bytes file = make_jpeg({.progressive = true});
  file = with_segment(file, 0xE2, std::string("ICC_PROFILE\0\1\1", 14) + std::string(60000, 'i'));
  file = with_segment(file, 0xFE, "a comment");
  file = with_segment(file, 0xED, "Photoshop 3.0");
  file = penstock_test::with_orientation(file, 6);
  Bytes fresh;
  REQUIRE(rewrite_jpeg(file, fresh).empty());
  CHECK(segments(fresh) == segments(file));
  CHECK(segments(fresh).size() > 60000);
  CHECK(exif_orientation(fresh, ImageFormat::jpeg) == 6);
  CHECK(pixels_of(fresh) == pixels_of(file));
}

TEST_CASE("colours are told as before: Adobe's segment stays, JFIF's does not appear") {
  const Bytes plain = without_jfif(make_jpeg({.progressive = true}));
  for (const Bytes& file : {plain, with_segment(plain, 0xEE, adobe(0)), with_segment(plain, 0xEE, adobe(1)),
                            with_segment(make_jpeg({.progressive = true}), 0xEE, adobe(0))}) {
    Bytes fresh;
    REQUIRE(rewrite_jpeg(file, fresh) == "");
    CHECK(segments(fresh) == segments(file));
    CHECK(pixels_of(fresh) == pixels_of(file));
  }
  // RGB by Adobe's word has other pixels than YCbCr, so the above can fail.
  CHECK(pixels_of(plain) != pixels_of(with_segment(plain, 0xEE, adobe(0))));
}

TEST_CASE("what could change is left alone, and says why") {
  const Bytes file = make_jpeg({.width = 64, .height = 64, .progressive = true});
  CHECK(why_not(make_jpeg({.arithmetic = true})) == "arithmetic coding");
  CHECK(why_not(make_jpeg({.optimize = true})) == "it would not become smaller");
  Bytes longer = file;
  longer.push_back(std::byte{0});
  CHECK(why_not(longer) == "there is more behind its end");
  // Cut between two scans and ended properly: decoders smooth what such a file shows.
  size_t scans = 0;
  for (size_t at = 2; at + 1 < file.size(); ++at) {
    if (file[at] != std::byte{0xFF} || file[at + 1] != std::byte{0xDA} || ++scans != 3) continue;
    Bytes first(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(at));
    first.push_back(std::byte{0xFF});
    first.push_back(std::byte{0xD9});
    CHECK(why_not(first) == "its progression is not complete");
  }
  CHECK(scans > 3);
  // A quantisation step of 0; DQT is the first segment after JFIF's.
  Bytes zero = file;
  REQUIRE(zero[21] == std::byte{0xDB});
  zero[25 + 5] = std::byte{0};
  CHECK(why_not(zero) == "a quantisation table that baseline JPEG cannot have");
  CHECK(!why_not({}).empty());
  CHECK(!why_not(Bytes(100, std::byte{0xFF})).empty());
}

TEST_CASE("damaged files are left alone or keep their pixels") {
  const Bytes good = make_jpeg({.width = 48, .height = 40, .progressive = true, .restart = 1});
  const DecodeLimits limits;
  int rewritten = 0;
  for (size_t at = 2; at < good.size(); at += 3) {
    Bytes file = good;
    file[at] ^= std::byte{0x11};
    Bytes fresh;
    ImageHeader header;
    if (!rewrite_jpeg(file, fresh).empty() || !read_header(file, limits, header).ok()) continue;
    ++rewritten;
    Decoder decoder(limits);
    PixelBuffer storage;
    PixelView view;
    if (decoder.decode(file, header, {0, 0, header.width, header.height}, storage, view).ok()) {
      CHECK(pixels_of(fresh) == pixels_of(file));
    }
  }
  CHECK(rewritten > 0);
  for (size_t bytes = 0; bytes < good.size(); bytes += 11) {
    CHECK(!why_not({good.begin(), good.begin() + static_cast<std::ptrdiff_t>(bytes)}).empty());
  }
}
