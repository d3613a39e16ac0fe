// Our own decoder of progressive JPEG: equal to libjpeg-turbo in every byte and every status, for any scan script, on
// regular, extreme, incomplete and damaged files, on every target of this CPU.
#include "runtime/decode/jpeg/progressive_rows.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <random>
#include <vector>

#include "runtime/decode/jpeg/own_jpeg_decoder.h"
#include "tests/decode/jpeg_comparison.h"
#include "tests/decode/jpeg_files.h"
#include "tests/decode/progressive_files.h"

namespace progressive_test {

namespace {

using namespace penstock;
using namespace penstock_test;

constexpr bool kOursHere =
#if defined(__x86_64__)
    true;
#else
    false;
#endif

// Chroma of one or two columns is the library's, and so is a script of too many scans.
bool is_ours(const JpegSpec& spec) {
  return kOursHere && (spec.grey || spec.h == 1 || spec.width > 4) && spec.scans.size() <= ProgressiveScans::kMostScans;
}

size_t find_marker(const File& file, unsigned marker, size_t from) {
  for (size_t i = from; i + 1 < file.size(); ++i) {
    if (file[i] == std::byte{0xFF} && file[i + 1] == static_cast<std::byte>(marker)) return i;
  }
  return file.size();
}

}  // namespace

TEST_CASE("progressive files of any legal script are ours, and equal libjpeg-turbo's for any box") {
  const unsigned seed = full() ? std::random_device{}() : 20261122U;
  MESSAGE("seed " << seed);
  std::mt19937 random(seed);
  Comparison comparison;
  int64_t expected = 0;
  const int files = full() ? 20000 : 400;
  for (int i = 0; i < files; ++i) {
    const JpegSpec spec = random_progressive(random, 67);
    const File file = make_jpeg(spec);
    for (int k = 0; k < 6; ++k) {
      const Box box = k == 0 ? Box{0, 0, spec.width, spec.height} : random_box(random, spec.width, spec.height);
      INFO("file ", i, " ", spec.width, "x", spec.height, " h ", spec.h, " v ", spec.v, " q ", spec.quality,
           " restart ", spec.restart, " scans ", spec.scans.size(), " box ", box.x, " ", box.y, " ", box.width, " ",
           box.height);
      REQUIRE(comparison.compare(file, box) == Comparison::Result::good);
      expected += is_ours(spec) ? 1 : 0;
      REQUIRE(comparison.counts().own_jpeg == expected);
    }
  }
  MESSAGE(comparison.counts().own_jpeg << " boxes by our decoder, " << comparison.counts().library_jpeg
                                       << " by the library, all equal");
}

TEST_CASE("every target of the CPU, larger files, long runs of blocks at an end") {
  on_every_target([] {
    std::mt19937 random(8);
    Comparison comparison;
    for (int i = 0; i < 6; ++i) {
      JpegSpec spec = random_progressive(random, 67);
      spec.width = draw(random, 200, 500);
      spec.height = draw(random, 200, 400);
      spec.noise_bits = i % 3 == 0 ? 1 : 7;
      const File file = make_jpeg(spec);
      REQUIRE(comparison.compare(file, {0, 0, spec.width, spec.height}) == Comparison::Result::good);
      for (int k = 0; k < 2; ++k) {
        REQUIRE(comparison.compare(file, random_box(random, spec.width, spec.height)) == Comparison::Result::good);
      }
    }
    if (kOursHere) CHECK(comparison.counts().library_jpeg == 0);
  });
}

TEST_CASE("any coefficients, also such as leave every range, give libjpeg-turbo's pixels") {
  std::mt19937 random(32);
  Comparison comparison;
  for (int i = 0; i < (full() ? 4000 : 120); ++i) {
    const File file = make_from_coefficients(random, i % 2 == 0, true);
    INFO("file ", i);
    REQUIRE(comparison.compare(file, {0, 0, 37, 29}) == Comparison::Result::good);
    REQUIRE(comparison.compare(file, random_box(random, 37, 29)) == Comparison::Result::good);
  }
  if (kOursHere) CHECK(comparison.counts().library_jpeg == 0);
}

TEST_CASE("what libjpeg smooths, warns of or decodes otherwise is the library's") {
  std::mt19937 random(4);
  Comparison comparison;
  const Script whole = mozjpeg_script(3);
  for (size_t scans = 1; scans < whole.size(); ++scans) {  // incomplete, up to the last bit of the last band
    const File file = make_jpeg({.scans = {whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(scans)}});
    for (int k = 0; k < 10; ++k) {
      REQUIRE(comparison.compare(file, random_box(random, 40, 33)) == Comparison::Result::good);
    }
    CHECK(comparison.counts().own_jpeg == 0);
  }
  // Only the coefficients that libjpeg smooths by must be there; those that nothing was said of are zero.
  const Script low{scan({0, 1, 2}, 0, 0, 0, 0), scan({0}, 1, 9, 0, 0), scan({1}, 1, 63, 0, 0), scan({2}, 1, 20, 0, 0)};
  CHECK(comparison.compare(make_jpeg({.scans = low}), {3, 4, 30, 20}) == Comparison::Result::good);
  CHECK(comparison.counts().own_jpeg == (kOursHere ? 1 : 0));
  const int64_t ours = comparison.counts().own_jpeg;
  const Box all{0, 0, 40, 33};
  for (const JpegSpec& spec :
       {JpegSpec{.progressive = true, .arithmetic = true}, JpegSpec{.h = 4, .progressive = true}}) {
    CHECK(comparison.compare(make_jpeg(spec), all) == Comparison::Result::good);
  }
  // A scan twice: a first pass again over known coefficients gives no warnings, a refining one is a warning.
  const File file = make_jpeg({.progressive = true});
  for (size_t begin = find_marker(file, 0xDA, 0); begin < file.size(); begin = find_marker(file, 0xDA, begin + 2)) {
    const size_t end = std::min(
        {find_marker(file, 0xDA, begin + 2), find_marker(file, 0xC4, begin + 2), find_marker(file, 0xD9, begin + 2)});
    File twice = file;
    twice.insert(twice.begin() + static_cast<std::ptrdiff_t>(end), file.begin() + static_cast<std::ptrdiff_t>(begin),
                 file.begin() + static_cast<std::ptrdiff_t>(end));
    comparison.compare(twice, all);
  }
  // Bytes before a scan's end, a marker too many, one missing.
  for (const size_t at : {find_marker(file, 0xC4, find_marker(file, 0xDA, 0)), find_marker(file, 0xD9, 0)}) {
    for (const std::vector<unsigned>& more : {std::vector<unsigned>{0x55},
                                              {0x55, 0x55, 0x55, 0x55, 0x55, 0x55, 0x55, 0x55, 0x55},
                                              {0xFF, 0xD0},
                                              {0xFF, 0}}) {
      File longer = file;
      auto place = longer.begin() + static_cast<std::ptrdiff_t>(at);
      for (const unsigned byte : more) place = longer.insert(place, static_cast<std::byte>(byte)) + 1;
      comparison.compare(longer, all);
    }
  }
  CHECK(comparison.counts().own_jpeg == ours);
  const File open(file.begin(), file.end() - 2);
  CHECK(comparison.compare(open, all) == Comparison::Result::bad);
  CHECK(comparison.compare(file, all) == Comparison::Result::good);
  CHECK(comparison.counts().own_jpeg == ours + (kOursHere ? 1 : 0));
}

TEST_CASE("the limit of scans is the same for both ways") {
  const File file = make_jpeg({.progressive = true});  // ten scans
  ImageHeader header;
  REQUIRE(read_header(file, {}, header).ok());
  PixelBuffer storage;
  PixelView pixels;
  for (int scans = 1; scans < 12; ++scans) {
    DecodeLimits limits;
    limits.max_scans = scans;
    JpegDecoder decoder{limits};
    const SampleStatus status = decoder.decode(file, header, {0, 0, 40, 33}, storage, pixels);
    CHECK(status.ok() == (scans >= 10));
    CHECK(decoder.counts().own_jpeg == (kOursHere && scans >= 10 ? 1 : 0));
  }
}

TEST_CASE("a large file's memory goes, also where nothing but its headers was read") {
  if (!kOursHere) return;
  // 40 MB of zeros in a file's last scan: headers are read past them.
  const auto large = [](const JpegSpec& spec) {
    File file = make_jpeg(spec);
    file.insert(file.end() - 2, size_t{40} << 20, std::byte{0});
    return file;
  };
  constexpr size_t kept = ProgressiveScans::kMostKeptBytes;
  {
    const File file = large({.width = 40, .height = 33, .progressive = true});
    CoefficientRows rows;
    JpegFrame frame;
    REQUIRE(rows.read_frame(file, {ImageFormat::jpeg, 40, 33}, 100, frame));
    CHECK(rows.kept_bytes() > kept);  // it is to be decoded
    rows.forget();
    CHECK(rows.kept_bytes() <= kept);
    CHECK_FALSE(rows.read_frame(file, {ImageFormat::jpeg, 41, 33}, 100, frame));  // another header's
    CHECK(rows.kept_bytes() <= kept);
  }
  PixelBuffer storage;
  PixelView pixels;
  const File file = large({.width = 40, .height = 33, .progressive = true});
  OwnJpegDecoder decoder(100);
  CHECK_FALSE(decoder.decode(file, {ImageFormat::jpeg, 40, 33}, {0, 0, 40, 33}, {}, storage, pixels));
  CHECK(decoder.kept_bytes() <= kept);
  // Chroma of two columns is none of ours. At full size the headers tell, here those of a reduced image do, that is
  // after all scans were looked through.
  const File narrow = large({.width = 8, .height = 33, .v = 1, .progressive = true});
  const ImageHeader header{ImageFormat::jpeg, 8, 33};
  OwnJpegDecoder reducing(100);
  CHECK_FALSE(reducing.decode(narrow, header, {0, 0, 4, 17}, {.reduction = 2}, storage, pixels));
  CHECK(reducing.kept_bytes() <= kept);
}

TEST_CASE("an index does not belong to a progressive file, whatever it says") {
  const File file = make_jpeg({.width = 64, .height = 48, .progressive = true});
  SideIndex index(1, 3);
  for (int mcu = 0; mcu < 12; ++mcu) REQUIRE(index.add({}));
  Comparison comparison;
  CHECK(comparison.compare(file, {20, 20, 30, 20}, {ImageFormat::jpeg, 64, 48}, 1, &index) == Comparison::Result::good);
  CHECK(comparison.counts().own_jpeg == (kOursHere ? 1 : 0));
  CHECK(comparison.counts().indexed_jpeg == 0);
}

TEST_CASE("quantisers may come between the scans; a component keeps those of its first one") {
  const File file = make_jpeg({.h = 1,
                               .v = 1,
                               .scans = {scan({0}, 0, 0, 0, 0), scan({0}, 1, 63, 0, 0), scan({1}, 0, 0, 0, 0),
                                         scan({2}, 0, 0, 0, 0), scan({1}, 1, 63, 0, 0), scan({2}, 1, 63, 0, 0)}});
  Comparison comparison;
  // Both tables again, with other numbers, before each of the scans.
  size_t at = 0;
  for (int n = 0; n < 6; ++n) {
    at = find_marker(file, 0xDA, at + 2);
    size_t before = at;  // the Huffman table belongs to the scan
    for (size_t table = find_marker(file, 0xC4, 0); table < at; table = find_marker(file, 0xC4, table + 2))
      before = table;
    File other = file;
    std::vector<std::byte> tables;
    for (unsigned t = 0; t < 2; ++t) {
      for (const unsigned byte : {0xFFU, 0xDBU, 0U, 67U, t}) tables.push_back(static_cast<std::byte>(byte));
      for (unsigned k = 0; k < 64; ++k) tables.push_back(static_cast<std::byte>(1 + (k * 7 + t) % 50));
    }
    other.insert(other.begin() + static_cast<std::ptrdiff_t>(n == 0 ? at : before), tables.begin(), tables.end());
    CHECK(comparison.compare(other, {3, 2, 30, 29}) == Comparison::Result::good);
  }
  CHECK(comparison.counts().own_jpeg == (kOursHere ? 6 : 0));
}

TEST_CASE("damaged files: same status, same reason, same bytes as the reference") {
  const unsigned seed = full() ? std::random_device{}() : 43U;
  MESSAGE("seed " << seed);
  std::mt19937 random(seed);
  Comparison comparison;
  int good = 0;
  int bad = 0;
  const int rounds = full() ? 500'000 : 4'000;
  File base;
  for (int round = 0; round < rounds; ++round) {
    if (round % 40 == 0) base = make_jpeg(random_progressive(random, 40));
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
  CHECK(good > rounds / 5);
  CHECK(bad > rounds / 100);
  if (kOursHere) CHECK(comparison.counts().own_jpeg > rounds / 20);
}

TEST_CASE("a file cut at any byte has the reference's status") {
  Comparison comparison;
  int bad = 0;
  for (const JpegSpec& spec :
       {JpegSpec{.width = 24, .height = 17, .progressive = true},
        JpegSpec{.width = 20, .height = 20, .h = 1, .v = 1, .restart = 1, .scans = mozjpeg_script(3)}}) {
    const File file = make_jpeg(spec);
    for (size_t cut = file.size() / 4; cut <= file.size(); ++cut) {
      const File part(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(cut));
      ImageHeader header;
      if (!read_header(part, {}, header).ok()) continue;
      INFO("cut ", cut, " of ", file.size());
      bad += comparison.compare(part, {5, 4, 9, 11}, header) == Comparison::Result::bad ? 1 : 0;
    }
    CHECK(comparison.compare(file, {0, 0, spec.width, spec.height}) == Comparison::Result::good);
  }
  CHECK(bad > 1000);
}

}  // namespace progressive_test
