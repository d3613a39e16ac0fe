// The cost model finds the cost of chunks, and speeds tell loaders apart although their chunks differ.
#include "runtime/balancer/cost_model.h"

#include <doctest/doctest.h>

#include <cmath>
#include <random>

namespace penstock {
namespace {

constexpr double kFixed = 2e6, kPerByte = 9.0, kPerPixel = 1.5;

TEST_CASE("fixed cost, cost per byte and per pixel are recovered, also from noisy times") {
  const uint64_t seed = 11;
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  for (const double noise : {0.0, 0.2}) {
    CAPTURE(noise);
    CostModel model;
    for (int i = 0; i < 4000; ++i) {
      const int64_t bytes = 200'000 + static_cast<int64_t>(random() % 3'000'000);
      const int64_t pixels = 400'000 + static_cast<int64_t>(random() % 9'000'000);
      const double error = 1 + noise * (static_cast<double>(random() % 2001) / 1000 - 1);
      const double cost = kFixed + kPerByte * static_cast<double>(bytes) + kPerPixel * static_cast<double>(pixels);
      model.observe(bytes, pixels, static_cast<int64_t>(cost * error));
    }
    const double tolerance = noise == 0 ? 0.001 : 0.05;
    CHECK(model.ns_per_byte() == doctest::Approx(kPerByte).epsilon(tolerance));
    CHECK(model.ns_per_pixel() == doctest::Approx(kPerPixel).epsilon(tolerance));
    const double truth = kFixed + kPerByte * 1e6 + kPerPixel * 3e6;
    CHECK(model.predict_ns(1'000'000, 3'000'000) == doctest::Approx(truth).epsilon(0.02));
  }
}

TEST_CASE("equal chunks for a very long time do no harm") {
  CostModel model;
  for (int i = 0; i < 1'000'000; ++i) model.observe(100'000, 300'000, 5'000'000);
  CHECK(model.predict_ns(100'000, 300'000) == doctest::Approx(5e6).epsilon(0.001));
  for (int i = 0; i < 5'000; ++i) model.observe(100'000 + i % 7 * 1000, 300'000, 7'000'000);
  const double after = model.predict_ns(103'000, 300'000);
  CHECK(std::isfinite(after));
  CHECK(after == doctest::Approx(7e6).epsilon(0.02));
}

TEST_CASE("before anything is known, and with times that say nothing") {
  CostModel model;
  CHECK(model.predict_ns(1, 1) == 0);
  model.observe(1000, 1000, 0);
  model.observe(1000, 1000, -5);
  model.observe(-1, 0, 5);
  CHECK(model.samples() == 0);
  SpeedEstimate speed;
  CHECK(speed.value() == 1);
  speed.observe(0, 100);
  speed.observe(100, 0);
  CHECK(speed.value() == 1);
}

TEST_CASE("a speed is expected over actual time, within limits") {
  SpeedEstimate speed;
  for (int i = 0; i < 50; ++i) speed.observe(3000, i % 2 == 0 ? 900 : 1100);
  CHECK(speed.value() == doctest::Approx(3).epsilon(0.05));
  for (int i = 0; i < 100; ++i) speed.observe(3000, 6000);
  CHECK(speed.value() == doctest::Approx(0.5).epsilon(0.05));
  for (int i = 0; i < 500; ++i) speed.observe(1, 1'000'000'000);
  CHECK(speed.value() == 1.0 / 64);
}

}  // namespace
}  // namespace penstock
