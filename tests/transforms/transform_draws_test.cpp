#include <doctest/doctest.h>

#include <cmath>
#include <cstdio>
#include <memory>
#include <random>
#include <vector>

#include "runtime/transforms/catalog.h"
#include "runtime/transforms/transform.h"

namespace transform_draws_test {

using penstock::Box;
using penstock::DrawStream;
using penstock::GeometricOp;
using penstock::GeometricTransform;
using penstock::OpKind;
using penstock::OpList;
using penstock::ParamMap;
using penstock::Size;
using List = std::vector<double>;

namespace {

constexpr uint64_t kSeed = 31;

std::unique_ptr<GeometricTransform> make(const char* name, const ParamMap& params) {
  const penstock::TransformInfo* info = penstock::find_transform(name);
  REQUIRE(info != nullptr);
  return std::get<std::unique_ptr<GeometricTransform>>(info->make(penstock::complete_params(*info, params)));
}

std::vector<int64_t> draw(const GeometricTransform& transform, Size in, uint64_t index) {
  DrawStream stream({.seed = kSeed, .index = index}, 0);
  std::vector<int64_t> values;
  transform.draw(stream, in, values);
  return values;
}

std::vector<GeometricOp> ops_of(const GeometricTransform& transform, Size in, const std::vector<int64_t>& values = {}) {
  OpList ops(in);
  const penstock::SampleStatus status = transform.geometry(in, values, ops);
  REQUIRE_MESSAGE(status.ok(), status.reason);
  return {ops.ops().begin(), ops.ops().end()};
}

std::string status_of(const GeometricTransform& transform, Size in) {
  OpList ops(in);
  return transform.geometry(in, draw(transform, in, 0), ops).reason;
}

}  // namespace

TEST_CASE("RandomResizedCrop: boxes inside the image, area and aspect within the ranges") {
  std::mt19937_64 random(kSeed);
  int central = 0;
  for (int i = 0; i < 50'000; ++i) {
    const Size in{static_cast<int>(random() % 700 + 1), static_cast<int>(random() % 700 + 1)};
    const double scale[2] = {0.08 + 0.1 * static_cast<double>(random() % 5),
                             0.6 + 0.1 * static_cast<double>(random() % 5)};
    const auto transform = make("RandomResizedCrop", {{"size", int64_t{224}}, {"scale", List{scale[0], scale[1]}}});
    const std::vector<int64_t> values = draw(*transform, in, static_cast<uint64_t>(i));
    REQUIRE(values.size() == 4);
    const double w = static_cast<double>(values[2]);
    const double h = static_cast<double>(values[3]);
    REQUIRE(values[0] >= 0);
    REQUIRE(values[1] >= 0);
    REQUIRE(w >= 1);
    REQUIRE(h >= 1);
    REQUIRE(values[0] + w <= in.width);
    REQUIRE(values[1] + h <= in.height);
    // Sides are rounded to whole pixels, so the ranges hold within half a pixel.
    const double area = in.width * static_cast<double>(in.height);
    const bool drawn = (w + 0.5) * (h + 0.5) >= scale[0] * area && (w - 0.5) * (h - 0.5) <= scale[1] * area &&
                       (w + 0.5) / std::max(h - 0.5, 0.5) >= 0.75 && (w - 0.5) / (h + 0.5) <= 4.0 / 3;
    if (!drawn) {
      // Then it is the fallback: as large as the aspect range allows, in the middle.
      ++central;
      REQUIRE((values[2] == in.width || values[3] == in.height));
      REQUIRE(values[0] == (in.width - values[2]) / 2);
      REQUIRE(values[1] == (in.height - values[3]) / 2);
    }
    const auto ops = ops_of(*transform, in, values);
    REQUIRE(ops.size() == 2);
    REQUIRE(ops[0].kind == OpKind::crop);
    REQUIRE(ops[1].kind == OpKind::resize);
    REQUIRE(ops[1].out == Size{224, 224});
  }
  std::printf("RandomResizedCrop: %d of 50000 boxes fell back (seed %llu)\n", central,
              static_cast<unsigned long long>(kSeed));
  CHECK(central > 0);
  CHECK(central < 25'000);
}

TEST_CASE("RandomResizedCrop: the fallback is torchvision's central crop") {
  const auto transform = make("RandomResizedCrop", {{"size", int64_t{8}}});
  CHECK(draw(*transform, {1000, 10}, 0) == std::vector<int64_t>{493, 0, 13, 10});  // round(10 * 4/3)
  CHECK(draw(*transform, {9, 1000}, 0) == std::vector<int64_t>{0, 494, 9, 12});    // 9 / 0.75
  CHECK(draw(*transform, {1, 1}, 0) == std::vector<int64_t>{0, 0, 1, 1});
}

TEST_CASE("RandomResizedCrop: mean area and log aspect are those of the ranges") {
  const auto transform = make("RandomResizedCrop", {{"size", int64_t{224}}, {"scale", List{0.08, 0.5}}});
  double area = 0, log_aspect = 0;
  constexpr int kCount = 40'000;
  for (int i = 0; i < kCount; ++i) {
    const std::vector<int64_t> v = draw(*transform, {600, 600}, static_cast<uint64_t>(i));
    area += static_cast<double>(v[2] * v[3]) / 360'000;
    log_aspect += std::log(static_cast<double>(v[2]) / static_cast<double>(v[3]));
  }
  // No box is refused at these ranges, so both are plain uniform distributions.
  CHECK(std::fabs(area / kCount - 0.29) < 4 * 0.1212 / std::sqrt(kCount));
  CHECK(std::fabs(log_aspect / kCount) < 4 * 0.1661 / std::sqrt(kCount));
}

TEST_CASE("RandomResizedCrop: draws of another image are refused") {
  const auto transform = make("RandomResizedCrop", {{"size", int64_t{8}}});
  for (const std::vector<int64_t>& values : std::vector<std::vector<int64_t>>{
           {0, 0, 11, 5}, {-1, 0, 5, 5}, {6, 0, 5, 5}, {0, 0, 0, 5}, {0, 0, 5}, {INT64_MAX, 0, 5, 5}}) {
    OpList ops({10, 10});
    CHECK_THROWS_AS(transform->geometry({10, 10}, values, ops), penstock::Error);
  }
}

TEST_CASE("Resize: sizes are torchvision's") {
  struct Case {
    Size in;
    ParamMap params;
    Size out;
  };
  const Case cases[] = {
      {{500, 375}, {{"size", int64_t{256}}}, {341, 256}},  // int(256 * 500 / 375)
      {{375, 500}, {{"size", int64_t{256}}}, {256, 341}},
      {{375, 500}, {{"size", List{256}}}, {256, 341}},
      {{300, 300}, {{"size", int64_t{256}}}, {256, 256}},
      {{500, 375}, {{"size", List{100, 200}}}, {200, 100}},  // [height, width]
      {{1000, 100}, {{"size", int64_t{64}}, {"max_size", int64_t{128}}}, {128, 12}},
      {{100, 1000}, {{"size", int64_t{64}}, {"max_size", int64_t{128}}}, {12, 128}},
      {{100, 110}, {{"size", int64_t{64}}, {"max_size", int64_t{128}}}, {64, 70}},
      {{1, 65500}, {{"size", int64_t{10}}}, {10, 655000}},
  };
  for (const Case& c : cases) {
    const auto transform = make("Resize", c.params);
    const auto ops = ops_of(*transform, c.in);
    REQUIRE(ops.size() == 1);
    CHECK(ops[0].out.width == c.out.width);
    CHECK(ops[0].out.height == c.out.height);
    CHECK(draw(*transform, c.in, 0).empty());
  }
  CHECK(status_of(*make("Resize", {{"size", int64_t{2}}, {"max_size", int64_t{4}}}), {1, 1000}) ==
        "Resize would turn 1 x 1000 into 0 x 4");
  CHECK(status_of(*make("Resize", {{"size", int64_t{65500}}}), {1, 65500}).find("4290250000") != std::string::npos);
}

TEST_CASE("CenterCrop: rounding and padding are torchvision's") {
  struct Case {
    Size in;
    Size out;
    Box box;
  };
  const Case cases[] = {
      {{10, 10}, {4, 4}, {3, 3, 4, 4}},
      {{9, 11}, {4, 4}, {2, 4, 4, 4}},  // round(2.5) = 2, round(3.5) = 4
      {{4, 4}, {4, 4}, {0, 0, 4, 4}},
      {{3, 2}, {6, 5}, {-1, -1, 6, 5}},  // 3 // 2 before, 2 after; (5 - 2) // 2 before
      {{3, 9}, {4, 4}, {0, 2, 4, 4}},    // 1 // 2 = 0 before, 1 after
  };
  for (const Case& c : cases) {
    const auto ops = ops_of(
        *make("CenterCrop", {{"size", List{static_cast<double>(c.out.height), static_cast<double>(c.out.width)}}}),
        c.in);
    REQUIRE(ops.size() == 1);
    CHECK(ops[0].box == c.box);
    CHECK(ops[0].fill.image == penstock::Fill{0, 0, 0});
  }
}

TEST_CASE("RandomCrop: every place of the padded image, equally often, and no other") {
  struct Case {
    Size in;
    ParamMap params;
    Box room;  // the padded image
  };
  const Case cases[] = {
      {{6, 5}, {{"size", List{4, 3}}}, {0, 0, 6, 5}},
      {{6, 5}, {{"size", List{4, 3}}, {"padding", int64_t{1}}}, {-1, -1, 8, 7}},
      {{6, 5}, {{"size", List{4, 3}}, {"padding", List{1, 2}}}, {-1, -2, 8, 9}},
      {{6, 5}, {{"size", List{4, 3}}, {"padding", List{1, 2, 0, 0}}}, {-1, -2, 7, 7}},
      {{2, 5}, {{"size", List{4, 4}}, {"pad_if_needed", true}}, {-2, 0, 6, 5}},
      {{2, 2}, {{"size", List{4, 4}}, {"padding", int64_t{0}}, {"pad_if_needed", true}}, {-2, -2, 6, 6}},
      {{4, 4}, {{"size", List{4, 4}}}, {0, 0, 4, 4}},
  };
  for (const Case& c : cases) {
    const auto transform = make("RandomCrop", c.params);
    const Size out = *transform->fixed_size(std::nullopt);
    const int columns = c.room.width - out.width + 1;
    const int rows = c.room.height - out.height + 1;
    std::vector<int> counts(static_cast<size_t>(rows * columns), 0);
    const int total = 400 * rows * columns;
    for (int i = 0; i < total; ++i) {
      const std::vector<int64_t> v = draw(*transform, c.in, static_cast<uint64_t>(i));
      REQUIRE(v.size() == 2);
      const int64_t column = v[0] - c.room.x;
      const int64_t row = v[1] - c.room.y;
      REQUIRE(column >= 0);
      REQUIRE(column < columns);
      REQUIRE(row >= 0);
      REQUIRE(row < rows);
      ++counts[static_cast<size_t>(row * columns + column)];
      const auto ops = ops_of(*transform, c.in, v);
      REQUIRE(ops[0].box == Box{static_cast<int>(v[0]), static_cast<int>(v[1]), out.width, out.height});
    }
    for (const int n : counts) CHECK(std::abs(n - 400) < 120);
  }
}

TEST_CASE("RandomCrop: an image that is too small is a bad sample; draws stay of fixed length") {
  const auto transform = make("RandomCrop", {{"size", int64_t{32}}});
  CHECK(draw(*transform, {31, 40}, 0) == std::vector<int64_t>{0, 0});
  CHECK(status_of(*transform, {31, 40}) ==
        "RandomCrop of 32 x 32 does not fit into 31 x 40 (pad_if_needed: true would pad)");
  OpList ops({40, 40});
  const std::vector<int64_t> outside = {9, 0};
  CHECK_THROWS_AS(transform->geometry({40, 40}, outside, ops), penstock::Error);
}

TEST_CASE("flips: as often as p, and only then an operation") {
  for (const double p : {0.0, 0.25, 0.5, 1.0}) {
    const auto transform = make("RandomHorizontalFlip", {{"p", p}});
    int flips = 0;
    for (uint64_t i = 0; i < 10'000; ++i) {
      const std::vector<int64_t> v = draw(*transform, {5, 5}, i);
      REQUIRE(v.size() == 1);
      flips += static_cast<int>(v[0]);
      REQUIRE(ops_of(*transform, {5, 5}, v).size() == static_cast<size_t>(v[0]));
    }
    CHECK(std::fabs(flips - 10'000 * p) <= 5 * std::sqrt(10'000 * p * (1 - p)));
  }
  CHECK(ops_of(*make("RandomVerticalFlip", {}), {5, 5}, {1})[0].kind == OpKind::flip_vertical);
  OpList ops({5, 5});
  const std::vector<int64_t> two = {2};
  CHECK_THROWS_AS(make("RandomVerticalFlip", {})->geometry({5, 5}, two, ops), penstock::Error);
}

}  // namespace transform_draws_test
