// The vector code of resampling against straight loops after Pillow's algorithm; Pillow itself is compared with in
// pillow_exact_test.py.
#include "runtime/pixels/resample.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#define HWY_WANT_AVX3_DL  // as in resample_kernels.cpp, so that its targets are listed
#include <hwy/targets.h>

#include "runtime/pixels/resample_kernels.h"
#include "runtime/pixels/resample_reference.h"

namespace {

using namespace penstock;

constexpr Filter kFilters[] = {Filter::nearest, Filter::box,     Filter::bilinear,
                               Filter::bicubic, Filter::lanczos, Filter::hamming};

struct Image {
  std::vector<uint8_t> bytes;
  int width = 0;
  int height = 0;
  PixelView view() const { return {bytes.data(), width, height, static_cast<size_t>(width) * 3}; }
  // Exactly the box, without a byte to spare: reading beyond would be seen by a sanitizer.
  Image cut(const Box& box) const {
    Image part{{}, box.width, box.height};
    for (int y = box.y; y < box.y + box.height; ++y) {
      const uint8_t* from = view().row(y) + static_cast<size_t>(box.x) * 3;
      part.bytes.insert(part.bytes.end(), from, from + static_cast<size_t>(box.width) * 3);
    }
    return part;
  }
};

Image noise(int width, int height, std::mt19937& random) {
  Image image{{}, width, height};
  image.bytes.resize(static_cast<size_t>(width) * static_cast<size_t>(height) * 3);
  // Black and white in part: overshoots of bicubic and lanczos must be clipped.
  const bool hard = random() % 2 == 0;
  for (uint8_t& b : image.bytes) b = static_cast<uint8_t>(hard ? (random() % 2) * 255 : random() & 255);
  return image;
}

std::vector<uint8_t> planar_of(const std::vector<uint8_t>& rgb, int width, int height, bool flip_x, bool flip_y) {
  std::vector<uint8_t> planes(rgb.size());
  for (int c = 0; c < 3; ++c) {
    for (int y = 0; y < height; ++y) {
      for (int x = 0; x < width; ++x) {
        const int from_x = flip_x ? width - 1 - x : x;
        const int from_y = flip_y ? height - 1 - y : y;
        planes[static_cast<size_t>((c * height + y) * width + x)] =
            rgb[static_cast<size_t>((from_y * width + from_x) * 3 + c)];
      }
    }
  }
  return planes;
}

// Runs both outputs from the smallest sufficient source and compares; true if equal.
bool equal_to_reference(Resampler& resampler, const ResampleGeometry& g, const Image& image, const Box& window,
                        std::mt19937& random) {
  const auto expected = resample_reference(g, image.view(), window);
  Box source = resampler.source_window(g, window);
  if (random() % 2 == 0) {  // or from a larger one
    const int left = static_cast<int>(random() % static_cast<unsigned>(source.x + 1));
    source.width += source.x - left;
    source.x = left;
  }
  const Image part = image.cut(source);
  PixelBuffer out;
  resampler.run(g, part.view(), source, window, out);
  REQUIRE(out.width() == window.width);
  REQUIRE(out.height() == window.height);
  bool equal = std::memcmp(out.row(0), expected.data(), expected.size()) == 0;
  const bool flip_x = random() % 2 == 0;
  const bool flip_y = random() % 2 == 0;
  std::vector<uint8_t> planes(expected.size());  // exact size: writing beyond would be seen too
  resampler.run_planar(g, part.view(), source, window, flip_x, flip_y, planes.data());
  return equal && planes == planar_of(expected, window.width, window.height, flip_x, flip_y);
}

}  // namespace

namespace {

void compare_random_cases(unsigned seed, int rounds) {
  std::mt19937 random(seed);
  Resampler resampler;
  for (int round = 0; round < rounds; ++round) {
    const auto side = [&](unsigned most) { return 1 + static_cast<int>(random() % most); };
    const unsigned most = round % 5 == 0 ? 200 : 40;
    const Image image = noise(side(most), side(most), random);
    ResampleGeometry g{image.width, image.height, side(most), side(most), kFilters[random() % std::size(kFilters)]};
    if (random() % 6 == 0) g.out_width = g.in_width;
    if (random() % 6 == 0) g.out_height = g.in_height;
    if (g.filter != Filter::nearest && random() % 3 == 0) {
      // Eighths of pixels.
      const auto span = [&](int size) {
        const int eighths = side(static_cast<unsigned>(8 * size));
        return InputSpan{static_cast<double>(random() % static_cast<unsigned>(8 * size - eighths + 1)) / 8,
                         eighths / 8.0};
      };
      g.columns = span(g.in_width);
      if (random() % 4 != 0) g.rows = span(g.in_height);
    }
    Box window{0, 0, side(static_cast<unsigned>(g.out_width)), side(static_cast<unsigned>(g.out_height))};
    window.x = static_cast<int>(random() % static_cast<unsigned>(g.out_width - window.width + 1));
    window.y = static_cast<int>(random() % static_cast<unsigned>(g.out_height - window.height + 1));
    if (random() % 4 == 0) window = {0, 0, g.out_width, g.out_height};
    INFO("round ", round, ": ", g.in_width, "x", g.in_height, " to ", g.out_width, "x", g.out_height, " filter ",
         static_cast<int>(g.filter), " window ", window.x, " ", window.y, " ", window.width, " ", window.height);
    REQUIRE(equal_to_reference(resampler, g, image, window, random));
  }
}

}  // namespace

TEST_CASE("vector code equals the reference for random sizes, windows and filters, on every target of this CPU") {
  constexpr unsigned seed = 99;
  std::string names;
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().DeInit();
    names += std::string(" ") + resample_target();
    CAPTURE(names);
    compare_random_cases(seed, 800);
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().DeInit();
  MESSAGE("seed " << seed << ", targets" << names << ", usual one " << std::string(resample_target()));
}

TEST_CASE("extreme ratios") {
  std::mt19937 random(3);
  Resampler resampler;
  const int sizes[][4] = {{3000, 3, 1, 1}, {3, 3000, 1, 1}, {1, 1, 700, 5},   {1, 1, 3, 900},
                          {2500, 2, 3, 2}, {2, 2, 1000, 2}, {777, 5, 776, 5}, {64, 64, 65, 63}};
  for (const auto& s : sizes) {
    for (const Filter filter : kFilters) {
      const Image image = noise(s[0], s[1], random);
      const ResampleGeometry g{s[0], s[1], s[2], s[3], filter};
      INFO(s[0], "x", s[1], " to ", s[2], "x", s[3], " filter ", static_cast<int>(filter));
      CHECK(equal_to_reference(resampler, g, image, {0, 0, s[2], s[3]}, random));
    }
  }
}

TEST_CASE("rows may come one by one, and begin again") {
  std::mt19937 random(21);
  Resampler resampler;
  const ResampleGeometry g{301, 1203, 97, 88, Filter::bicubic};
  const Box window{5, 3, 90, 80};
  const Box need = resampler.source_window(g, window);
  const Image image = noise(g.in_width, g.in_height, random);
  const Image part = image.cut(need);
  const auto expected = resample_reference(g, image.view(), window);
  std::vector<uint8_t> planes(expected.size());
  RowSink& rows = resampler.begin_planar(g, window, true, true, planes.data());
  for (const int count : {1, 700, need.height}) {
    for (int y = 0; y < count; ++y) {
      const PlanarRow to = rows.row(y);
      for (int x = 0; x < need.width; ++x) {
        const uint8_t* const pixel = part.view().row(y) + static_cast<size_t>(x) * 3;
        to.red[x] = pixel[0];
        to.green[x] = pixel[1];
        to.blue[x] = pixel[2];
      }
    }
  }
  resampler.finish();
  CHECK(planes == planar_of(expected, window.width, window.height, true, true));
}

TEST_CASE("the source window is the smallest: shrinking it by one is refused") {
  Resampler resampler;
  const ResampleGeometry g{500, 375, 256, 256, Filter::bilinear};
  const Box window{16, 16, 224, 224};
  const Box need = resampler.source_window(g, window);
  CHECK(Box{0, 0, 500, 375}.contains(need));
  CHECK(need.width < 500);
  CHECK(need.height < 375);
  std::mt19937 random(1);
  const Image image = noise(500, 375, random);
  PixelBuffer out;
  for (const Box& less :
       {Box{need.x + 1, need.y, need.width - 1, need.height}, Box{need.x, need.y + 1, need.width, need.height - 1},
        Box{need.x, need.y, need.width - 1, need.height}, Box{need.x, need.y, need.width, need.height - 1}}) {
    const Image part = image.cut(less);
    CHECK_THROWS_AS(resampler.run(g, part.view(), less, window, out), Error);
  }
  CHECK_THROWS_AS(resampler.source_window(g, {0, 0, 257, 1}), Error);
  CHECK_THROWS_AS(resampler.source_window(g, {0, 0, 0, 1}), Error);
}

TEST_CASE("unchanged sizes copy, and a constant picture stays constant") {
  std::mt19937 random(8);
  Resampler resampler;
  const Image image = noise(33, 21, random);
  PixelBuffer out;
  resampler.run({33, 21, 33, 21, Filter::lanczos}, image.view(), {0, 0, 33, 21}, {0, 0, 33, 21}, out);
  CHECK(std::memcmp(out.row(0), image.bytes.data(), image.bytes.size()) == 0);
  const Image flat{std::vector<uint8_t>(size_t{50} * 40 * 3, 200), 50, 40};
  for (const Filter filter : kFilters) {
    resampler.run({50, 40, 31, 77, filter}, flat.view(), {0, 0, 50, 40}, {0, 0, 31, 77}, out);
    CHECK(std::count(out.row(0), out.row(0) + 31 * 77 * 3, 200) == 31 * 77 * 3);
  }
}

TEST_CASE("to_planar mirrors and separates, for any width") {
  std::mt19937 random(5);
  for (int width = 1; width < 70; ++width) {
    const Image image = noise(width, 3, random);
    for (const bool flip_x : {false, true}) {
      for (const bool flip_y : {false, true}) {
        std::vector<uint8_t> planes(image.bytes.size());
        to_planar(image.view(), flip_x, flip_y, planes.data());
        CHECK(planes == planar_of(image.bytes, width, 3, flip_x, flip_y));
      }
    }
  }
}
