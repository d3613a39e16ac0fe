// Decoding: headers, limits, statuses that do not depend on the way of decoding, damaged files. With PENSTOCK_FULL=1 cut at every
// byte.
#include "runtime/decode/decoder.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <csetjmp>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "runtime/decode/jpeg/jpeg_decoder.h"
#include "tests/decode/jpeg_damage.h"
#include "tests/decode/jpeg_files.h"

namespace {

using namespace penstock;
using penstock_test::JpegSpec;
using penstock_test::make_jpeg;

struct Result {
  bool header_ok = false;
  std::string reason;
  std::vector<uint8_t> pixels;
};

std::vector<uint8_t> copy_of(const PixelView& view) {
  std::vector<uint8_t> bytes;
  for (int y = 0; y < view.height; ++y) {
    bytes.insert(bytes.end(), view.row(y), view.row(y) + static_cast<size_t>(view.width) * 3);
  }
  return bytes;
}

// libjpeg in its plainest use, written apart from the library: whole rows from 0 to `last`, one at a time.
struct Plain {
  jpeg_error_mgr errors{};
  std::jmp_buf escape{};
};

void plain_error(j_common_ptr info) {
  std::longjmp(*static_cast<std::jmp_buf*>(info->client_data), 1);
}

void plain_message(j_common_ptr info, int level) {
  if (level >= 0) return;
  ++info->err->num_warnings;
  // By its text, so that nothing here depends on the decoder's own list of codes.
  const char* text = info->err->jpeg_message_table[info->err->msg_code];
  if (std::strcmp(text, "Premature end of JPEG file") == 0) plain_error(info);
}

bool plain_decode(const std::vector<std::byte>& file, int last, int max_warnings, std::vector<uint8_t>& rows,
                  int& width) {
  static Plain plain;
  static jpeg_decompress_struct info;
  static std::vector<uint8_t> line;
  info = jpeg_decompress_struct{};
  info.err = jpeg_std_error(&plain.errors);
  plain.errors.error_exit = plain_error;
  plain.errors.emit_message = plain_message;
  jpeg_create_decompress(&info);
  info.client_data = &plain.escape;
  rows.clear();
  if (setjmp(plain.escape) != 0) {
    jpeg_destroy_decompress(&info);
    return false;
  }
  jpeg_mem_src(&info, reinterpret_cast<const unsigned char*>(file.data()), file.size());
  jpeg_read_header(&info, TRUE);
  info.out_color_space = JCS_RGB;
  jpeg_start_decompress(&info);
  width = static_cast<int>(info.output_width);
  line.resize(static_cast<size_t>(width) * 3);
  for (int y = 0; y <= last; ++y) {
    JSAMPROW pointer = line.data();
    jpeg_read_scanlines(&info, &pointer, 1);
    rows.insert(rows.end(), line.begin(), line.end());
  }
  const bool good = plain.errors.num_warnings <= max_warnings;
  jpeg_destroy_decompress(&info);
  return good;
}

Result decode(Decoder& decoder, const std::vector<std::byte>& file, const Box& box, const DecodeLimits& limits = {}) {
  Result result;
  ImageHeader header;
  SampleStatus status = read_header(file, limits, header);
  result.header_ok = status.ok();
  if (status.ok() && !Box{0, 0, header.width, header.height}.contains(box)) status = SampleStatus::bad("other size");
  if (status.ok()) {
    PixelBuffer storage;
    PixelView pixels;
    status = decoder.decode(file, header, box, storage, pixels);
    if (status.ok()) result.pixels = copy_of(pixels);
  }
  result.reason = status.reason;
  return result;
}

std::vector<std::byte> bytes_of(const std::string& text) {
  std::vector<std::byte> bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

void put_big_endian(std::vector<std::byte>& file, size_t at, unsigned value) {
  file[at] = static_cast<std::byte>(value >> 8);
  file[at + 1] = static_cast<std::byte>(value & 255);
}

// Offset of the frame header's marker.
size_t frame_of(const std::vector<std::byte>& file) {
  for (size_t i = 2; i + 1 < file.size(); ++i) {
    const auto b = std::to_integer<unsigned>(file[i + 1]);
    if (file[i] == std::byte{0xFF} && (b == 0xC0 || b == 0xC2 || b == 0xC9 || b == 0xCA)) return i;
  }
  return 0;
}

}  // namespace

TEST_CASE("headers are told by the first bytes, never by the name") {
  const DecodeLimits limits;
  ImageHeader header;
  CHECK(read_header({}, limits, header).reason == "empty file");
  CHECK(read_header(bytes_of("hello, world"), limits, header).reason ==
        "not a JPEG, PNG, GIF, BMP, PNM, WebP or TIFF file (starts with 68 65 6c 6c 6f 2c 20 77)");
  CHECK(read_header(bytes_of("\xff"), limits, header).reason ==
        "not a JPEG, PNG, GIF, BMP, PNM, WebP or TIFF file (starts with ff)");
  const auto jpeg = make_jpeg({.width = 31, .height = 17});
  REQUIRE(read_header(jpeg, limits, header).ok());
  CHECK(header.format == ImageFormat::jpeg);
  CHECK(header.width == 31);
  CHECK(header.height == 17);
  CHECK(decoder_versions().find("libjpeg-turbo") == 0);
  CHECK(decoder_versions().find("libspng") != std::string::npos);
  MESSAGE(decoder_versions());
}

TEST_CASE("limits are checked before memory is taken") {
  auto huge = make_jpeg({});
  const size_t frame = frame_of(huge);
  put_big_endian(huge, frame + 5, 65535);
  put_big_endian(huge, frame + 7, 65535);
  ImageHeader header;
  CHECK(read_header(huge, {}, header).reason ==
        "image of 65535x65535 pixels: sides over the limit of 65500 (limits.max_side)");
  put_big_endian(huge, frame + 5, 60000);
  put_big_endian(huge, frame + 7, 60000);
  CHECK(read_header(huge, {}, header).reason ==
        "image of 60000x60000 pixels: over the limit of 178956970 (limits.max_pixels)");
  put_big_endian(huge, frame + 5, 0);
  CHECK(read_header(huge, {}, header).reason == "image of size 60000x0");

  // Sneaked past the limits by a caller's header: the decoder compares.
  put_big_endian(huge, frame + 5, 60000);
  Decoder decoder({});
  PixelBuffer storage;
  PixelView pixels;
  CHECK(decoder.decode(huge, {ImageFormat::jpeg, 40, 33}, {0, 0, 4, 4}, storage, pixels).reason ==
        "JPEG: the headers contradict each other");
  CHECK(storage.capacity_bytes() == 0);

  const auto file = make_jpeg({});
  DecodeLimits small;
  small.max_encoded_bytes = 10;
  CHECK(read_header(file, small, header).reason.find("over the limit of 10") != std::string::npos);

  auto deep = file;
  deep[frame + 4] = std::byte{12};
  CHECK(read_header(deep, {}, header).reason == "12-bit JPEG is not supported");
  deep = file;
  deep[frame + 1] = std::byte{0xC3};
  CHECK(read_header(deep, {}, header).reason == "lossless JPEG is not supported");
}

TEST_CASE("a progressive file of too many scans is refused") {
  const auto file = make_jpeg({.progressive = true});
  DecodeLimits limits;
  limits.max_scans = 3;
  Decoder strict(limits);
  CHECK(decode(strict, file, {0, 0, 40, 33}, limits).reason == "JPEG: over the limit of 3 scans (limits.max_scans)");
  Decoder usual({});
  CHECK(decode(usual, file, {0, 0, 40, 33}).reason.empty());
}

TEST_CASE("a scan repeated a thousand times is stopped by the limit, not by time") {
  auto file = make_jpeg({.width = 400, .height = 400, .progressive = true});
  // The last scan of the file, again and again before the end of image.
  size_t scan = 0;
  for (size_t i = 2; i + 1 < file.size(); ++i) {
    if (file[i] == std::byte{0xFF} && file[i + 1] == std::byte{0xDA}) scan = i;
  }
  REQUIRE(scan > 0);
  const std::vector<std::byte> last(file.begin() + static_cast<std::ptrdiff_t>(scan), file.end() - 2);
  file.resize(file.size() - 2);
  for (int i = 0; i < 1000; ++i) file.insert(file.end(), last.begin(), last.end());
  file.push_back(std::byte{0xFF});
  file.push_back(std::byte{0xD9});
  Decoder decoder({});
  CHECK_FALSE(decode(decoder, file, {0, 0, 40, 33}).reason.empty());
}

TEST_CASE("misuse is an error, not a status") {
  Decoder decoder({});
  const auto file = make_jpeg({});
  PixelBuffer storage;
  PixelView pixels;
  ImageHeader header;
  REQUIRE(read_header(file, {}, header).ok());
  CHECK_THROWS_AS(decoder.decode(file, header, {0, 0, 41, 33}, storage, pixels), Error);
  CHECK_THROWS_AS(decoder.decode(file, header, {-1, 0, 4, 3}, storage, pixels), Error);
  CHECK_THROWS_AS(decoder.decode(file, header, {0, 0, 0, 3}, storage, pixels), Error);
  CHECK(decoder.decode(file, header, {0, 0, 40, 33}, storage, pixels).ok());
}

TEST_CASE("a file cut anywhere: the status is that of plain libjpeg over the same rows, for every box") {
  int good = 0;
  int bad = 0;
  for (const JpegSpec& spec : {JpegSpec{}, JpegSpec{.h = 1, .v = 1}, JpegSpec{.h = 2, .v = 1, .restart = 2},
                               JpegSpec{.h = 1, .v = 2}, JpegSpec{.progressive = true}, JpegSpec{.arithmetic = true}}) {
    const auto file = make_jpeg(spec);
    Decoder decoder({});
    for (size_t cut = 0; cut <= file.size(); cut += penstock_test::full() ? 1 : 5) {
      const std::vector<std::byte> part(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(cut));
      for (const int last : {0, 7, 14, 15, 16, 31, 32}) {
        std::vector<uint8_t> rows;
        int width = 0;
        const bool expected = plain_decode(part, last, 100, rows, width);
        const int top = std::min(last, static_cast<int>(cut % 33));
        for (const Box& box : {Box{0, 0, 40, last + 1}, Box{3, top, 5, last + 1 - top}, Box{33, last, 7, 1}}) {
          const Result result = decode(decoder, part, box);
          INFO("cut ", cut, " of ", file.size(), " last ", last, " box ", box.x, " ", box.y, ": ", result.reason);
          REQUIRE(result.reason.empty() == expected);
          (expected ? good : bad)++;
          if (!expected) continue;
          std::vector<uint8_t> wanted;
          for (int y = box.y; y < box.y + box.height; ++y) {
            const auto from = rows.begin() + (y * width + box.x) * 3;
            wanted.insert(wanted.end(), from, from + box.width * 3);
          }
          REQUIRE(result.pixels == wanted);
        }
      }
    }
  }
  MESSAGE(good << " good, " << bad << " bad statuses, all as plain libjpeg's");
  CHECK(good > 1000);
  CHECK(bad > 1000);
}

TEST_CASE("damaged files: status and bytes are those of plain libjpeg, whatever box is asked for") {
  constexpr unsigned seed = 4711;
  MESSAGE("seed " << seed);
  std::mt19937 random(seed);
  const DecodeLimits limits;
  Decoder decoder(limits);
  std::vector<std::vector<std::byte>> files;
  for (const JpegSpec& spec :
       {JpegSpec{}, JpegSpec{.width = 70, .height = 60, .h = 2, .v = 1}, JpegSpec{.h = 1, .v = 1, .restart = 3},
        JpegSpec{.width = 67, .h = 1, .v = 2}, JpegSpec{.width = 65, .height = 50, .progressive = true},
        JpegSpec{.arithmetic = true}, JpegSpec{.progressive = true, .arithmetic = true}}) {
    files.push_back(make_jpeg(spec));
  }
  int good = 0;
  int bad = 0;
  const int rounds = penstock_test::full() ? 6000 : 2000;
  for (int round = 0; round < rounds; ++round) {
    auto file = files[static_cast<size_t>(round) % files.size()];
    const size_t from = random() % 4 == 0 ? 2 : file.size() / 2;  // mostly the entropy-coded part
    for (unsigned n = 1 + random() % 3; n > 0; --n) {
      const size_t at = from + random() % (file.size() - from);
      const unsigned kind = random() % penstock_test::kKindsWithin;
      penstock_test::damage_at(file, at, kind, static_cast<std::byte>(random()));
      if (file.size() < 100) break;
    }
    ImageHeader header;
    if (!read_header(file, limits, header).ok() || header.width * int64_t{header.height} > 100000) continue;
    const int w = 1 + static_cast<int>(random() % static_cast<unsigned>(header.width));
    const int h = 1 + static_cast<int>(random() % static_cast<unsigned>(header.height));
    const Box box{static_cast<int>(random() % static_cast<unsigned>(header.width - w + 1)),
                  static_cast<int>(random() % static_cast<unsigned>(header.height - h + 1)), w, h};
    std::vector<uint8_t> rows;
    int width = 0;
    const bool expected = plain_decode(file, box.y + h - 1, limits.max_warnings, rows, width);
    const Result result = decode(decoder, file, box);
    INFO("round ", round, ": ", result.reason);
    // The limit on warnings and colour spaces are ours; everything else is libjpeg's answer.
    if (result.reason.find("colour space") != std::string::npos) continue;
    REQUIRE(result.reason.empty() == expected);
    (expected ? good : bad)++;
    if (!expected) continue;
    std::vector<uint8_t> wanted;
    for (int y = box.y; y < box.y + h; ++y) {
      const auto start = rows.begin() + (y * width + box.x) * 3;
      wanted.insert(wanted.end(), start, start + w * 3);
    }
    REQUIRE(result.pixels == wanted);
  }
  MESSAGE(good << " decoded, " << bad << " refused, all as plain libjpeg");
  CHECK(good > rounds / 6);
  CHECK(bad > rounds / 60);
}

TEST_CASE("a decoder goes on after bad files, and its buffer is reused") {
  Decoder decoder({});
  const auto good = make_jpeg({.width = 64, .height = 64});
  auto cut = good;
  cut.resize(cut.size() / 2);
  PixelBuffer storage;
  PixelView pixels;
  ImageHeader header;
  REQUIRE(read_header(good, {}, header).ok());
  REQUIRE(decoder.decode(good, header, {0, 0, 64, 64}, storage, pixels).ok());
  const auto first = copy_of(pixels);
  const size_t capacity = storage.capacity_bytes();
  for (int i = 0; i < 50; ++i) {
    CHECK_FALSE(decoder.decode(cut, header, {0, 0, 64, 64}, storage, pixels).ok());
    REQUIRE(decoder.decode(good, header, {0, 0, 64, 64}, storage, pixels).ok());
    CHECK(copy_of(pixels) == first);
  }
  CHECK(storage.capacity_bytes() == capacity);
}
