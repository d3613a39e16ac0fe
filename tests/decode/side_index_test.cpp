// Decoding from restart points gives what decoding from the start gives, for any interval, box and kind of baseline
// file; an index that does not belong to the file costs its speed and nothing else.
#include "runtime/decode/jpeg/side_index.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "runtime/decode/decoder.h"
#include "runtime/decode/jpeg/jpeg_decoder.h"
#include "tests/decode/jpeg_files.h"

namespace side_index_test {

namespace {

using namespace penstock;
using penstock_test::draw;
using penstock_test::JpegSpec;
using penstock_test::make_jpeg;
using penstock_test::random_spec;
using File = std::vector<std::byte>;

struct Decoded {
  SampleStatus status;
  std::string pixels;
};

Decoded decode(JpegDecoder& decoder, const File& file, const Box& box, const SideIndex* index) {
  ImageHeader header;
  REQUIRE(read_header(file, {}, header).ok());
  PixelBuffer storage;
  PixelView view;
  Decoded result{decoder.decode(file, header, box, storage, view, {.index = index}), {}};
  for (int y = 0; result.status.ok() && y < box.height; ++y) {
    result.pixels.append(reinterpret_cast<const char*>(view.row(y)), static_cast<size_t>(box.width) * 3);
  }
  return result;
}

TEST_CASE("with an index, the bytes are those without") {
  const unsigned seed = std::random_device{}();
  INFO("seed ", seed);
  std::mt19937 random(seed);
  JpegDecoder decoder({});
  const int files = penstock_test::full() ? 4000 : 150;
  int64_t by_index = 0;
  int64_t boxes = 0;
  int64_t ours = 0;  // files that our decoder takes; it leaves slivers to the library
  for (int i = 0; i < files; ++i) {
    const JpegSpec spec = random_spec(random, i % 8 == 0 ? 400 : 90);
    const File file = make_jpeg(spec);
    const int64_t taken = decoder.counts().own_jpeg;
    REQUIRE(decode(decoder, file, {0, 0, spec.width, spec.height}, nullptr).status.ok());
    SideIndex dense;
    REQUIRE(build_side_index(file, {.interval = 1}, dense) == (decoder.counts().own_jpeg > taken));
    if (dense.empty()) continue;
    ++ours;
    for (const int interval : {1, draw(random, 2, 6), draw(random, 7, 500)}) {
      SideIndex index;
      if (!build_side_index(file, {.interval = interval}, index)) {
        // Sixteen points of a file of pure noise do not always fit 20 bits.
        REQUIRE(interval > 6);
        REQUIRE(index.empty());
        continue;
      }
      const std::string text = index.serialise();
      SideIndex again;
      REQUIRE(SideIndex::read(std::as_bytes(std::span(text)), again));
      CHECK(again == index);
      for (int b = 0; b < 6; ++b) {
        const int w = draw(random, 1, spec.width);
        const int h = draw(random, 1, spec.height);
        const Box box{draw(random, 0, spec.width - w), draw(random, 0, spec.height - h), w, h};
        const int64_t before = decoder.counts().own_jpeg;
        const Decoded got = decode(decoder, file, box, &index);
        by_index += decoder.counts().own_jpeg - before;
        ++boxes;
        REQUIRE(got.status.ok());
        REQUIRE(got.pixels == decode(decoder, file, box, nullptr).pixels);
      }
    }
  }
  CHECK(by_index == boxes);  // none of them was handed to the library
  CHECK(ours * 10 > files * 9);
  CHECK(boxes > ours * 15);
}

TEST_CASE("one per cent of the file") {
  JpegSpec spec;
  spec.width = 500;
  spec.height = 375;
  spec.quality = 95;
  for (const int h : {1, 2}) {
    spec.h = spec.v = h;
    const File file = make_jpeg(spec);
    SideIndex index;
    REQUIRE(build_side_index(file, {}, index));
    CHECK(index.bytes() * 100 <= file.size());
    CHECK(index.bytes() * 200 >= file.size());
  }
}

TEST_CASE("a file that libjpeg-turbo would complain about gets none") {
  const JpegSpec spec{.width = 80, .height = 60};
  const File whole = make_jpeg(spec);
  SideIndex index;
  REQUIRE(build_side_index(whole, {.interval = 2}, index));
  for (size_t cut = 1; cut < 200; cut += 7) {
    const File file(whole.begin(), whole.end() - static_cast<std::ptrdiff_t>(cut + 2));
    CHECK_FALSE(build_side_index(file, {.interval = 2}, index));
  }
  CHECK_FALSE(build_side_index({}, {}, index));
}

TEST_CASE("an index of another file, or a damaged one") {
  std::mt19937 random(5);
  JpegDecoder decoder({});
  int64_t own = 0;
  for (int i = 0; i < 60; ++i) {
    JpegSpec spec = random_spec(random, 120);
    spec.width = spec.height = 120;
    spec.noise_bits = 8;
    const File file = make_jpeg(spec);
    SideIndex index;
    if (i % 2 == 0) {  // another picture of the same kind
      spec.seed += 1;
      REQUIRE(build_side_index(make_jpeg(spec), {.interval = 3}, index));
    } else {
      REQUIRE(build_side_index(file, {.interval = 3}, index));
      std::string text = index.serialise();
      text[8 + random() % (text.size() - 8)] ^= static_cast<char>(1 << random() % 8);
      REQUIRE(SideIndex::read(std::as_bytes(std::span(text)), index));
    }
    const Box all{0, 0, spec.width, spec.height};
    const int64_t before = decoder.counts().own_jpeg;
    CHECK(decode(decoder, file, all, &index).pixels == decode(decoder, file, all, nullptr).pixels);
    own += decoder.counts().own_jpeg - before;
  }
  CHECK(own < 100);  // of 120: most of the wrong ones were noticed, and the library did the work
}

TEST_CASE("an index of a file of another size is none, and not counted") {
  const File file = make_jpeg({.width = 120, .height = 120});
  SideIndex index;
  REQUIRE(build_side_index(make_jpeg({.width = 120, .height = 104}), {.interval = 3}, index));
  JpegDecoder decoder({});
  const Box box{40, 40, 60, 60};
  CHECK(decode(decoder, file, box, &index).pixels == decode(decoder, file, box, nullptr).pixels);
  CHECK(decoder.counts().indexed_jpeg == 0);
  REQUIRE(build_side_index(file, {.interval = 3}, index));
  CHECK(decode(decoder, file, box, &index).status.ok());
  CHECK(decoder.counts().indexed_jpeg == decoder.counts().own_jpeg / 3);
}

TEST_CASE("text that is no index") {
  SideIndex index;
  REQUIRE(build_side_index(make_jpeg({.width = 60, .height = 60}), {.interval = 1}, index));
  const std::string good = index.serialise();
  for (size_t length = 0; length < good.size(); ++length) {
    CHECK_FALSE(SideIndex::read(std::as_bytes(std::span(good).first(length)), index));
  }
  for (const size_t place : {0, 1, 4}) {
    std::string bad = good;
    bad[place] = 99;
    CHECK_FALSE(SideIndex::read(std::as_bytes(std::span(bad)), index));
  }
}

}  // namespace

}  // namespace side_index_test
