// The distribution of many values in little memory.
#include "runtime/base/histogram.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace penstock {
namespace {

TEST_CASE("quantiles are within six in a hundred, mean and largest exact") {
  std::mt19937_64 random(3);
  Histogram histogram;
  std::vector<int64_t> all;
  for (int i = 0; i < 20000; ++i) {
    const auto value = static_cast<int64_t>(random() >> (19 + random() % 44));
    histogram.add(value);
    all.push_back(value);
  }
  std::sort(all.begin(), all.end());
  double sum = 0;
  for (const int64_t value : all) sum += static_cast<double>(value);
  CHECK(histogram.mean() == doctest::Approx(sum / 20000));
  CHECK(histogram.most() == all.back());
  CHECK(histogram.count() == 20000);
  for (const double share : {0.0, 0.1, 0.5, 0.9, 0.99, 0.999, 1.0}) {
    const int64_t exact = all[std::min(all.size() - 1, static_cast<size_t>(share * 20000))];
    CHECK(histogram.quantile(share) >= exact);
    CHECK(static_cast<double>(histogram.quantile(share)) <= std::max(1023.0, 1.0626 * static_cast<double>(exact)));
  }
}

TEST_CASE("two are added, and one is written down and read") {
  Histogram both, one;
  CHECK(both.quantile(0.5) == 0);
  CHECK(both.quantiles().empty());
  for (const int64_t value : {5, 70'000, 70'001, 9'000'000}) one.add(value);
  both.add(one);
  both.add(8'000'000);
  const auto read = Histogram::from(both.buckets(), both.sum(), both.most());
  REQUIRE(read);
  CHECK(read->count() == 5);
  CHECK(read->mean() == both.mean());
  CHECK(read->quantile(0.5) == both.quantile(0.5));
  CHECK(read->quantiles() == both.quantiles());
  CHECK(!Histogram::from({{-1, 1}}, 0, 0));
  CHECK(!Histogram::from({{1 << 20, 1}}, 0, 0));
  CHECK(!Histogram::from({{3, 0}}, 0, 0));
}

TEST_CASE("its quantiles go from 0 to 1 and never fall") {
  Histogram histogram;
  for (int64_t value = 1; value < 3'000'000; value = value * 5 / 4 + 1) histogram.add(value);
  const auto points = histogram.quantiles();
  CHECK(points.front().first == 0);
  CHECK(points.back() == std::pair<double, int64_t>{1, histogram.most()});
  for (size_t i = 1; i < points.size(); ++i) {
    CHECK(points[i].first >= points[i - 1].first);
    CHECK(points[i].second >= points[i - 1].second);
  }
}

}  // namespace
}  // namespace penstock
