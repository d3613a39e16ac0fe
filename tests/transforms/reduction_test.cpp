// arithmetic: fast. Which reduction, which pixels of the reduced image, and whole pipelines: against libjpeg's scaled
// decode and straight loops, and near what `exact` gives.
#include "runtime/transforms/reduction.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "runtime/decode/jpeg/sample_grid.h"
#include "runtime/decode/jpeg/side_index.h"
#include "runtime/pixels/resample_reference.h"
#include "runtime/transforms/pipeline.h"
#include "tests/decode/jpeg_damage.h"
#include "tests/decode/jpeg_files.h"
#include "tests/transforms/image_files.h"

namespace reduction_test {

namespace {

using namespace penstock;
using List = std::vector<double>;
using Bytes = std::vector<uint8_t>;

// Colours that change slowly: where something is shifted by part of a pixel, the values tell.
Bytes ramps(int width, int height) {
  Bytes rgb;
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      rgb.push_back(static_cast<uint8_t>(std::lround(127.5 + 120 * std::sin(x / 90.0))));
      rgb.push_back(static_cast<uint8_t>(std::lround(127.5 + 120 * std::sin(y / 70.0 + 1))));
      rgb.push_back(static_cast<uint8_t>(std::lround(127.5 + 120 * std::sin((x + y) / 120.0))));
    }
  }
  return rgb;
}

Bytes run(const Pipeline& pipeline, EncodedView file, const ImageHeader& header, const Draws& draws, Scratch& scratch,
          const SideIndex* index = nullptr) {
  Bytes out(static_cast<size_t>(pipeline.out_width()) * static_cast<size_t>(pipeline.out_height()) * 3);
  const SampleStatus status = pipeline.apply(ImageInput{file, {}, index}, header, draws, out, scratch, {});
  REQUIRE_MESSAGE(status.ok(), status.reason);
  return out;
}

ImageHeader header_of(EncodedView file, const HeaderOptions& options = {}) {
  ImageHeader header;
  REQUIRE(read_header(file, DecodeLimits{}, header, options).ok());
  return header;
}

// The box resized to `out`, decoded at 1/reduction: the definition, in straight loops over the whole reduced image.
Bytes by_definition(EncodedView file, const ImageHeader& header, const Box& box, Size out, int reduction,
                    Filter filter) {
  Decoder decoder{DecodeLimits{}};
  PixelBuffer storage;
  PixelView view;
  const Box all{0, 0, reduced_size(header.width, reduction), reduced_size(header.height, reduction)};
  REQUIRE(decoder.decode(file, header, all, storage, view, {.reduction = reduction}).ok());
  const auto edges = [&](int from, int length, int& first, int& count) {
    const double r = reduction;
    first = static_cast<int>(std::floor(from / r));
    count = static_cast<int>(std::ceil((from + length) / r)) - first;
    return InputSpan{from / r - first, length / r};
  };
  ResampleGeometry g{0, 0, out.width, out.height, filter};
  Box pixels;
  g.columns = edges(box.x, box.width, pixels.x, pixels.width);
  g.rows = edges(box.y, box.height, pixels.y, pixels.height);
  if (g.columns.length == pixels.width) g.columns = {};
  if (g.rows.length == pixels.height) g.rows = {};
  g.in_width = pixels.width;
  g.in_height = pixels.height;
  const PixelView part{view.row(pixels.y) + 3 * pixels.x, pixels.width, pixels.height, view.row_bytes};
  return resample_reference(g, part, {0, 0, out.width, out.height});
}

Bytes planar(const Bytes& rgb, Size size, bool flip) {
  Bytes out;
  for (int c = 0; c < 3; ++c) {
    for (int y = 0; y < size.height; ++y) {
      for (int x = 0; x < size.width; ++x) {
        const int from = flip ? size.width - 1 - x : x;
        out.push_back(rgb[static_cast<size_t>((y * size.width + from) * 3 + c)]);
      }
    }
  }
  return out;
}

int largest_difference(const Bytes& a, const Bytes& b) {
  REQUIRE(a.size() == b.size());
  int largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

}  // namespace

TEST_CASE("the largest reduction that leaves as many pixels as the output has, both ways") {
  CHECK(reduction_for({447, 448}, {224, 224}) == 1);
  CHECK(reduction_for({448, 448}, {224, 224}) == 2);
  CHECK(reduction_for({4000, 448}, {224, 224}) == 2);
  CHECK(reduction_for({895, 896}, {224, 224}) == 2);
  CHECK(reduction_for({896, 896}, {224, 224}) == 4);
  CHECK(reduction_for({1792, 1791}, {224, 224}) == 4);
  CHECK(reduction_for({1792, 1792}, {224, 224}) == 8);
  CHECK(reduction_for({60000, 60000}, {1, 1}) == 8);
  CHECK(reduction_for({7, 7}, {1, 1}) == 4);
}

TEST_CASE("spans of the reduced image: edges at x / reduction, counted from the file's beginning") {
  for (const int reduction : {2, 4, 8}) {
    for (int size = 17; size < 34; ++size) {
      for (int from = 0; from < size; ++from) {
        for (int to = from + 1; to <= size; ++to) {
          for (const bool mirrored : {false, true}) {
            const ReducedSpan got = reduced_span(size, from, to, reduction, mirrored);
            // Mirrored: the same pixels of the file, seen from the other side.
            const double r = reduction;
            const int all = reduced_size(size, reduction);
            const double begin = mirrored ? all - (size - from) / r : from / r;
            const double length = (to - from) / r;
            REQUIRE(got.begin == static_cast<int>(std::floor(begin)));
            REQUIRE(got.end == static_cast<int>(std::ceil(begin + length)));
            REQUIRE(got.end <= all);
            const bool whole = begin == got.begin && begin + length == got.end;
            REQUIRE(got.span.whole() == whole);
            if (whole) continue;
            REQUIRE(got.begin + got.span.begin == begin);
            REQUIRE(got.span.length == length);
            REQUIRE(got.end - flipped(got).span.begin - length == begin);
          }
        }
      }
    }
  }
}

TEST_CASE("pipelines of crop and resize are the scaled decode of the needed pixels, resampled") {
  std::mt19937 random(11);
  Scratch scratch{DecodeLimits{}};
  int reduced[9] = {};
  static const char* const names[] = {"box", "bilinear", "bicubic", "lanczos"};
  constexpr Filter filters[] = {Filter::box, Filter::bilinear, Filter::bicubic, Filter::lanczos};
  for (int i = 0; i < 120; ++i) {
    const int width = 60 + static_cast<int>(random() % 300);
    const int height = 60 + static_cast<int>(random() % 300);
    const Bytes rgb = penstock_test::make_rgb(width, height, random());
    const auto file = penstock_test::encode_jpeg(rgb, width, height, 85, 1 + static_cast<int>(random() % 2));
    const ImageHeader header = header_of(file);
    const Size size{8 + static_cast<int>(random() % 40), 8 + static_cast<int>(random() % 40)};
    const size_t kind = random() % 4;
    const bool flip_first = random() % 2 == 0;
    const TransformSpec crop{
        "RandomResizedCrop",
        {{"size", List{double(size.height), double(size.width)}}, {"interpolation", std::string(names[kind])}}};
    const TransformSpec flip{"RandomHorizontalFlip", {{"p", 1.0}}};
    const Pipeline pipeline(flip_first ? std::vector{flip, crop} : std::vector{crop, flip}, {Arithmetic::fast});
    const Draws draws = pipeline.draw({.seed = 5, .epoch = 1, .index = static_cast<uint64_t>(i)}, header);
    const Box box = pipeline.describe(header, draws).crop;
    const int reduction = reduction_for({box.width, box.height}, size);
    ++reduced[reduction];
    SideIndex index;
    const Bytes got = run(pipeline, file, header, draws, scratch);
    if (build_side_index(file, {}, index)) REQUIRE(run(pipeline, file, header, draws, scratch, &index) == got);
    if (flip_first && reduction > 1) continue;  // the mirrored image is resampled: below
    if (flip_first) {
      const Pipeline exact({flip, crop});
      REQUIRE(got == run(exact, file, header, draws, scratch));
      continue;
    }
    INFO("picture ", i, " ", width, "x", height, " to ", size.width, "x", size.height, " 1/", reduction, " box ", box.x,
         " ", box.y, " ", box.width, " ", box.height, " ", names[kind]);
    REQUIRE(got == planar(by_definition(file, header, box, size, reduction, filters[kind]), size, true));
  }
  MESSAGE(reduced[1], " at full size, ", reduced[2], " at 1/2, ", reduced[4], " at 1/4, ", reduced[8], " at 1/8");
  for (const int reduction : {1, 2, 4, 8}) CHECK(reduced[reduction] > 3);
}

TEST_CASE("smooth pictures come out as by exact, whatever stands around the resize and however the file is turned") {
  const Bytes rgb = ramps(617, 451);
  auto file = penstock_test::encode_jpeg(rgb, 617, 451, 97, 1);
  const TransformSpec flip_x{"RandomHorizontalFlip", {{"p", 1.0}}};
  const TransformSpec flip_y{"RandomVerticalFlip", {{"p", 1.0}}};
  const TransformSpec crop{"RandomResizedCrop", {{"size", List{24, 24}}, {"scale", List{0.05, 0.6}}}};
  const TransformSpec resize{"Resize", {{"size", List{50}}}};
  const TransformSpec middle{"CenterCrop", {{"size", List{40, 40}}}};
  const TransformSpec cut{"CenterCrop", {{"size", List{301, 407}}}};
  const TransformSpec small{"Resize", {{"size", List{33, 47}}}};
  const TransformSpec invert{"RandomInvert", {{"p", 1.0}}};
  const std::vector<std::vector<TransformSpec>> pipelines{{crop},
                                                          {flip_x, crop},
                                                          {flip_y, crop, flip_x},
                                                          {resize, middle},
                                                          {flip_x, flip_y, resize, middle},
                                                          {cut, small},
                                                          {flip_x, cut, small},
                                                          {cut, flip_y, small, invert},
                                                          {crop, invert}};
  Scratch scratch{DecodeLimits{}};
  int different = 0;
  const uint64_t samples = penstock_test::full() ? 8 : 3;
  for (size_t p = 0; p < pipelines.size(); ++p) {
    const Pipeline exact(pipelines[p]);
    const Pipeline fast(pipelines[p], {Arithmetic::fast});
    for (uint8_t orientation = 1; orientation <= 8; ++orientation) {
      for (uint64_t i = 0; i < samples; ++i) {
        ImageHeader header = header_of(file);
        header.orientation = orientation;
        if (header.swaps_sides()) std::swap(header.width, header.height);
        const Draws draws = exact.draw({.seed = 2, .epoch = 0, .index = i}, header);
        REQUIRE(fast.draw({.seed = 2, .epoch = 0, .index = i}, header) == draws);
        const Bytes wanted = run(exact, file, header, draws, scratch);
        const Bytes got = run(fast, file, header, draws, scratch);
        INFO("pipeline ", p, " orientation ", static_cast<int>(orientation), " sample ", i);
        REQUIRE(largest_difference(got, wanted) <= 4);
        different += got != wanted ? 1 : 0;
      }
    }
  }
  CHECK(different > static_cast<int>(samples) * 300 / 8);  // of 72 a sample
}

TEST_CASE("a damaged file is good or bad by fast where it is by exact: samples stand in for the same ones") {
  std::mt19937 random(17);
  Scratch scratch{DecodeLimits{}};
  Scratch exact_scratch{DecodeLimits{}};
  int good = 0;
  int bad = 0;
  const int files = penstock_test::full() ? 300 : 75;
  for (int i = 0; i < files; ++i) {
    const int width = 120 + static_cast<int>(random() % 200);
    const int height = 120 + static_cast<int>(random() % 200);
    const auto file = penstock_test::encode_jpeg(penstock_test::make_rgb(width, height, random()), width, height, 85,
                                                 1 + static_cast<int>(random() % 2));
    const ImageHeader header = header_of(file);
    const std::vector<TransformSpec> crop{{"RandomResizedCrop", {{"size", List{16, 16}}, {"scale", List{0.2, 1.0}}}}};
    const Pipeline fast(crop, {Arithmetic::fast});
    const Pipeline exact(crop);
    for (int k = 0; k < 12; ++k) {
      std::vector<std::byte> damaged = file;
      const size_t at = file.size() / 4 + random() % (file.size() * 3 / 4);
      if (k % 3 == 0) {
        damaged.resize(at);
      } else {
        penstock_test::damage_at(damaged, at, random() % penstock_test::kKindsOfDamage, std::byte(random() & 255));
      }
      const Draws draws = fast.draw({.seed = 3, .index = static_cast<uint64_t>(12 * i + k)}, header);
      Bytes out(16 * 16 * 3);
      const SampleStatus wanted = exact.apply(damaged, header, draws, out, exact_scratch);
      const SampleStatus got = fast.apply(damaged, header, draws, out, scratch);
      CAPTURE(i);
      CAPTURE(k);
      REQUIRE(got.ok() == wanted.ok());
      (got.ok() ? good : bad)++;
    }
  }
  MESSAGE(good << " good, " << bad << " bad");
  CHECK(good > files * 5 / 3);  // of twelve times as many
  CHECK(bad > files * 5 / 3);
}

TEST_CASE("what fast cannot reduce is exact: nearest, PNG, padding, an image that something needs whole") {
  const Bytes rgb = penstock_test::make_rgb(200, 180, 4);
  const auto jpeg = penstock_test::encode_jpeg(rgb, 200, 180, 80, 2);
  const auto png = penstock_test::encode_png(rgb, 200, 180);
  const TransformSpec small{"Resize", {{"size", List{20, 20}}}};
  Scratch scratch{DecodeLimits{}};
  const auto same = [&](const std::vector<TransformSpec>& specs, EncodedView file) {
    const ImageHeader header = header_of(file);
    const Pipeline exact(specs);
    const Pipeline fast(specs, {Arithmetic::fast});
    const Draws draws = exact.draw({.seed = 1, .epoch = 0, .index = 0}, header);
    return run(exact, file, header, draws, scratch) == run(fast, file, header, draws, scratch);
  };
  CHECK_FALSE(same({small}, jpeg));
  CHECK(same({small}, png));
  CHECK(same({{"Resize", {{"size", List{20, 20}}, {"interpolation", std::string("nearest")}}}}, jpeg));
  CHECK(same({{"Pad", {{"padding", List{3}}}}, small}, jpeg));
  CHECK(same({{"RandomInvert", {{"p", 1.0}}}, small}, jpeg));
  CHECK(same({{"Resize", {{"size", List{101, 101}}}}, small}, jpeg));  // the first resize decides
  CHECK(same({{"CenterCrop", {{"size", List{64, 64}}}}}, jpeg));
}

}  // namespace reduction_test
