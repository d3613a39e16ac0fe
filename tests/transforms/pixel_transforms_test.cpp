// What the comparison with torchvision does not see: masks, wrong draws, memory, and the same bytes from every
// compiler.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "runtime/pixels/blur_math.h"
#include "runtime/transforms/catalog.h"
#include "runtime/transforms/draw_gamma.h"
#include "runtime/transforms/transform.h"
#include "tests/transforms/count_allocations.h"
#include "tests/transforms/image_files.h"

namespace {

using penstock::ImageRole;
using penstock::ParamMap;
using penstock::PixelBuffer;
using penstock::PixelTransform;
using penstock::Size;

using List = std::vector<double>;
using Bytes = std::vector<uint8_t>;

struct Named {
  const char* name;
  ParamMap params;
};

// Every pixel transform, set up so that it acts on every sample or nearly so.
std::vector<Named> all_transforms(const std::string& interpolation) {
  const ParamMap always{{"p", 1.0}};
  return {{"Grayscale", {{"num_output_channels", int64_t{3}}}},
          {"RandomGrayscale", always},
          {"ColorJitter", {{"brightness", 0.5}, {"contrast", 0.5}, {"saturation", 0.5}, {"hue", 0.2}}},
          {"RandomInvert", always},
          {"RandomPosterize", {{"bits", int64_t{3}}, {"p", 1.0}}},
          {"RandomSolarize", {{"threshold", 90.0}, {"p", 1.0}}},
          {"RandomAdjustSharpness", {{"sharpness_factor", 2.5}, {"p", 1.0}}},
          {"RandomAutocontrast", always},
          {"RandomEqualize", always},
          {"RandomChannelPermutation", {}},
          {"RandomPhotometricDistort", {{"p", 0.7}}},
          {"GaussianNoise", {{"sigma", 0.4}}},
          {"JPEG", {{"quality", List{5, 95}}}},
          {"GaussianBlur", {{"kernel_size", List{5, 9}}}},
          {"RandomErasing", always},
          {"RandomErasing", {{"value", std::string("random")}, {"p", 1.0}}},
          {"AugMix", {}},
          // These move pixels.
          {"RandomRotation", {{"degrees", 170.0}, {"interpolation", interpolation}, {"fill", List{7}}}},
          {"RandomRotation", {{"degrees", 170.0}, {"interpolation", interpolation}, {"expand", true}}},
          {"RandomRotation", {{"degrees", List{90, 90}}, {"interpolation", interpolation}, {"expand", true}}},
          {"RandomAffine",
           {{"degrees", 20.0},
            {"translate", List{0.1, 0.2}},
            {"scale", List{0.5, 1.5}},
            {"shear", 15.0},
            {"interpolation", interpolation}}},
          {"RandomPerspective", {{"p", 1.0}, {"interpolation", interpolation}}},
          {"RandAugment", {{"num_ops", int64_t{4}}, {"interpolation", interpolation}}},
          {"AutoAugment", {{"policy", std::string("svhn")}, {"interpolation", interpolation}}},
          {"TrivialAugmentWide", {{"interpolation", interpolation}}}};
}
// How many of them, at the beginning, leave masks alone. A new one that does goes before GaussianBlur, and counts; one
// that moves pixels goes to the end.
constexpr size_t kStill = 17;

std::unique_ptr<PixelTransform> make(const Named& one) {
  const penstock::TransformInfo* info = penstock::find_transform(one.name);
  REQUIRE(info != nullptr);
  return std::get<std::unique_ptr<PixelTransform>>(info->make(penstock::complete_params(*info, one.params)));
}

std::vector<int64_t> draw(const PixelTransform& transform, Size size, uint64_t index) {
  penstock::DrawStream stream({.seed = 3, .epoch = 1, .index = index}, 2);
  std::vector<int64_t> values;
  transform.draw(stream, size, values);
  return values;
}

void load(PixelBuffer& image, const Bytes& rgb, Size size) {
  image.resize(size.width, size.height);
  std::copy(rgb.begin(), rgb.end(), image.row(0));
}

Bytes bytes_of(const PixelBuffer& image) {
  return {image.row(0), image.row(0) + image.row_bytes() * static_cast<size_t>(image.height())};
}

// Class ids in blocks, three equal bytes a pixel.
Bytes make_mask(Size size) {
  Bytes rgb;
  for (int y = 0; y < size.height; ++y) {
    for (int x = 0; x < size.width; ++x) rgb.insert(rgb.end(), 3, static_cast<uint8_t>(20 * (x / 5 % 4 + y / 7 % 3)));
  }
  return rgb;
}

}  // namespace

TEST_CASE("no pixel transform is left out") {
  const std::vector<Named> all = all_transforms("nearest");
  for (const penstock::TransformInfo& info : penstock::transform_catalog()) {
    const bool named = std::any_of(all.begin(), all.end(), [&](const Named& one) { return one.name == info.name; });
    if (named || info.batch) continue;
    penstock::ParamMap params;
    for (const penstock::ParamInfo& param : info.params) {
      const auto least = static_cast<int64_t>(std::ceil(std::max(1.0, param.minimum)));
      if (!param.default_value)
        params[param.name] = param.kind == penstock::ParamKind::text ? penstock::ParamValue(std::string("m:f"))
                                                                     : penstock::ParamValue(least);
    }
    CAPTURE(info.name);
    try {
      const penstock::Transform made = info.make(penstock::complete_params(info, params));
      CHECK_FALSE(std::holds_alternative<std::unique_ptr<PixelTransform>>(made));
    } catch (const std::exception&) {
      // Groups and Python's: what they contain cannot be made up here.
    }
  }
}

TEST_CASE("a mask gets the geometry, nearest, and no colour") {
  const Size size{41, 33};
  const Bytes mask = make_mask(size);
  const std::vector<Named> smooth = all_transforms("bilinear"), nearest = all_transforms("nearest");
  penstock::PaintScratch scratch;
  for (size_t i = 0; i < smooth.size(); ++i) {
    CAPTURE(smooth[i].name);
    const auto transform = make(smooth[i]), blunt = make(nearest[i]);
    CHECK(transform->colour_only() == (i < kStill - 1));  // AugMix mixes moved pixels
    int moved = 0;
    for (uint64_t sample = 0; sample < 40; ++sample) {
      const std::vector<int64_t> values = draw(*transform, size, sample);
      if (!transform->acts(values)) continue;
      PixelBuffer image;
      load(image, mask, size);
      REQUIRE(transform->paint(image, values, ImageRole::mask, scratch).ok());
      const Bytes painted = bytes_of(image);
      if (i < kStill) {
        REQUIRE(painted == mask);
        continue;
      }
      moved += painted != mask;
      Size after;
      REQUIRE(transform->size_after(size, values, after).ok());
      REQUIRE(after == Size{image.width(), image.height()});
      PixelBuffer same;
      load(same, mask, size);
      REQUIRE(blunt->paint(same, values, ImageRole::mask, scratch).ok());
      REQUIRE(bytes_of(same) == painted);
      for (size_t p = 0; p < painted.size(); ++p) {
        const bool id = painted[p] % 20 == 0 && painted[p] <= 100;
        REQUIRE((id || painted[p] == 7));  // 7 is the one fill
      }
    }
    if (i >= kStill) CHECK(moved > 10);
  }
}

TEST_CASE("the bytes are the same on every machine") {
  // FNV-1a over all transforms, filters and samples. A change of this number is a change of every user's pixels, or a new
  // line in all_transforms: add that only after this has passed without it.
  uint64_t hash = 14695981039346656037ULL;
  const auto add = [&](uint64_t value) { hash = (hash ^ value) * 1099511628211ULL; };
  const Size size{53, 38};
  const Bytes rgb = penstock_test::make_rgb(size.width, size.height, 4);
  penstock::PaintScratch scratch;
  for (const char* filter : {"nearest", "bilinear", "bicubic"}) {
    for (const Named& one : all_transforms(filter)) {
      const auto transform = make(one);
      for (uint64_t sample = 0; sample < 6; ++sample) {
        const std::vector<int64_t> values = draw(*transform, size, sample);
        for (const int64_t value : values) add(static_cast<uint64_t>(value));
        if (!transform->acts(values)) continue;
        PixelBuffer image;
        load(image, rgb, size);
        REQUIRE(transform->paint(image, values, ImageRole::image, scratch).ok());
        for (const uint8_t byte : bytes_of(image)) add(byte);
      }
    }
  }
  CHECK(hash == 3570392121563582237ULL);
}

TEST_CASE("painting allocates nothing once its buffers have grown") {
  const Size size{53, 38};
  const Bytes rgb = penstock_test::make_rgb(size.width, size.height, 4);
  for (const Named& one : all_transforms("bilinear")) {
    CAPTURE(one.name);
    const auto transform = make(one);
    penstock::PaintScratch scratch;
    PixelBuffer image;
    std::vector<std::vector<int64_t>> draws;
    for (uint64_t sample = 0; sample < 20; ++sample) draws.push_back(draw(*transform, size, sample));
    const auto paint_all = [&] {
      for (const std::vector<int64_t>& values : draws) {
        if (!transform->acts(values)) continue;
        load(image, rgb, size);
        REQUIRE(transform->paint(image, values, ImageRole::image, scratch).ok());
      }
    };
    paint_all();
    paint_all();  // image and scratch exchange buffers: both have been the larger one now
    const long before = penstock_test::allocations();
    paint_all();
    CHECK(penstock_test::allocations() == before);
  }
}

TEST_CASE("draws of another pipeline are refused") {
  penstock::PaintScratch scratch;
  const Size size{20, 10};
  const Bytes rgb = penstock_test::make_rgb(size.width, size.height, 4);
  for (const Named& one : all_transforms("nearest")) {
    CAPTURE(one.name);
    const auto transform = make(one);
    const std::vector<int64_t> others(draw(*transform, size, 0).empty() ? 1 : 0);  // one where it draws nothing
    CHECK_THROWS_AS(transform->acts(others), penstock::Error);
  }
  const auto refused = [&](const Named& one, const std::vector<int64_t>& values) {
    PixelBuffer image;
    load(image, rgb, size);
    CHECK_THROWS_AS(make(one)->paint(image, values, ImageRole::image, scratch), penstock::Error);
  };
  refused({"RandomErasing", {}}, {15, 0, 6, 5});
  refused({"RandomErasing", {}}, {-1, 0, 6, 5});
  refused({"RandomErasing", {}}, {0, 0, 6, 11});
  refused({"ColorJitter", {{"hue", 0.1}}}, {0, 1, 2, 4, 0, 0, 0, 0});
  refused({"RandomChannelPermutation", {}}, {0, 2, 2});
  refused({"RandomChannelPermutation", {}}, {0, 1, 3});
  refused({"JPEG", {{"quality", List{5, 95}}}}, {4});
  refused({"JPEG", {{"quality", int64_t{30}}}}, {31});
  refused({"RandomPhotometricDistort", {}}, {1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 1, 1});
  refused({"GaussianBlur", {{"kernel_size", int64_t{3}}}}, {0});
  refused({"RandomAffine", {{"degrees", 1.0}}}, {0, 0, 0, 0, 0, 0});
  refused({"RandAugment", {}}, {1, 0, 15, 0});
  refused({"RandAugment", {}}, {-1, 0, 0, 0});
  refused({"TrivialAugmentWide", {}}, {1, 31, 0});
  refused({"AutoAugment", {}}, {25, 1, 0, 1, 0});
  refused({"AugMix", {{"mixture_width", int64_t{1}}}}, {0, 0, 4, 1, 0, 0, 1, 0, 0, 1, 0, 0});
}

TEST_CASE("a degenerate perspective is no error, whatever its coefficients") {
  penstock::PaintScratch scratch;
  const Size size{9, 7};
  const Bytes rgb = penstock_test::make_rgb(size.width, size.height, 4);
  const std::vector<std::vector<int64_t>> corners = {{1, 3, 3, 3, 3, 3, 3, 3, 3},
                                                     {1, 0, 0, 4, 0, 8, 0, 2, 0},
                                                     {1, 8, 6, 0, 6, 0, 0, 8, 0},
                                                     {1, 0, 0, 8, 6, 8, 0, 0, 6}};
  for (const char* filter : {"nearest", "bilinear", "bicubic"}) {
    for (const std::vector<int64_t>& values : corners) {
      PixelBuffer image;
      load(image, rgb, size);
      CHECK(make({"RandomPerspective", {{"interpolation", std::string(filter)}}})
                ->paint(image, values, ImageRole::image, scratch)
                .ok());
      CHECK(image.width() == size.width);
    }
  }
}

TEST_CASE("reflection goes back and forth") {
  for (int size = 1; size < 6; ++size) {
    int at = 0, step = 1;
    for (int i = 0; i < 40; ++i) {
      CHECK(penstock::reflected(i, size) == at);
      CHECK(penstock::reflected(-i, size) == at);
      if (size == 1) continue;
      if (at + step < 0 || at + step >= size) step = -step;
      at += step;
    }
  }
}

TEST_CASE("a blur whose kernel is larger than the image, and one of a single colour") {
  penstock::PaintScratch scratch;
  for (const Size size : {Size{1, 1}, Size{2, 9}, Size{30, 3}}) {
    PixelBuffer image;
    load(image, Bytes(static_cast<size_t>(size.width * size.height) * 3, 201), size);
    const auto blur = make({"GaussianBlur", {{"kernel_size", List{31, 21}}, {"sigma", 50.0}}});
    REQUIRE(blur->paint(image, draw(*blur, size, 0), ImageRole::image, scratch).ok());
    for (const uint8_t byte : bytes_of(image)) REQUIRE(byte == 201);
  }
}

TEST_CASE("gamma variates have the mean and variance of their shape") {
  for (const double shape : {0.3, 1.0, 2.5, 40.0}) {
    double sum = 0, squares = 0;
    constexpr int kCount = 20000;
    for (uint64_t i = 0; i < kCount; ++i) {
      penstock::DrawStream stream({.seed = 9, .epoch = 0, .index = i}, 0);
      const double x = penstock::draw_gamma(stream, shape);
      sum += x;
      squares += x * x;
    }
    const double mean = sum / kCount, variance = squares / kCount - mean * mean;
    CHECK(mean == doctest::Approx(shape).epsilon(0.03));
    CHECK(variance == doctest::Approx(shape).epsilon(0.1));
  }
}
