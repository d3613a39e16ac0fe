#include "runtime/simulate/distribution.h"

#include <algorithm>

#include "runtime/base/error.h"
#include "runtime/simulate/portable_math.h"

namespace penstock {

namespace {

constexpr double kLargest = 4e18;  // an int64_t holds it

void require(bool good, const char* what) {
  if (!good) throw Error(ErrorKind::usage, std::string("a distribution ") + what, "give the parameters that it has");
}

int64_t rounded(double value) {
  return static_cast<int64_t>(std::clamp(value, 0.0, kLargest) + 0.5);
}

}  // namespace

Distribution Distribution::constant(int64_t value) {
  return empirical({{0, value}, {1, value}});
}

Distribution Distribution::exponential(double mean) {
  require(mean >= 0 && mean < kLargest, "that is exponential has a mean of 0 or more");
  Distribution it(Kind::exponential);
  it.a_ = it.mean_ = mean;
  return it;
}

Distribution Distribution::lognormal(double median, double sigma) {
  require(median > 0 && median < kLargest, "that is lognormal has a median above 0");
  require(sigma >= 0 && sigma < 10, "that is lognormal has a sigma from 0 to 10");
  Distribution it(Kind::lognormal);
  it.a_ = median;
  it.b_ = sigma;
  it.mean_ = median * portable_exp(sigma * sigma / 2);
  return it;
}

Distribution Distribution::empirical(std::vector<std::pair<double, int64_t>> quantiles) {
  require(quantiles.size() >= 2 && quantiles.front().first == 0 && quantiles.back().first == 1,
          "by quantiles has them from 0 to 1");
  require(quantiles.front().second >= 0, "by quantiles has no negative values");
  Distribution it(Kind::empirical);
  for (size_t i = 1; i < quantiles.size(); ++i) {
    const auto& [share, value] = quantiles[i];
    const auto& [share_before, value_before] = quantiles[i - 1];
    require(share >= share_before && value >= value_before, "by quantiles has them in order");
    it.mean_ += (share - share_before) * (static_cast<double>(value_before) + static_cast<double>(value)) / 2;
  }
  it.quantiles_ = std::move(quantiles);
  return it;
}

Distribution Distribution::times(double factor) const {
  require(factor >= 0 && factor < 1e9, "is multiplied by 0 or more");
  Distribution it = *this;
  it.mean_ *= factor;
  it.a_ *= factor;
  for (auto& [share, value] : it.quantiles_) value = rounded(static_cast<double>(value) * factor);
  return it;
}

int64_t Distribution::draw(SeededRandom& random) const {
  // The middle of one of 2^53 equal parts: neither 0 nor 1.
  return quantile((static_cast<double>(random.bits() >> 11) + 0.5) * 0x1p-53);
}

int64_t Distribution::quantile(double share) const {
  switch (kind_) {
    case Kind::exponential: return rounded(-a_ * portable_ln(1 - share));
    case Kind::lognormal: return rounded(a_ * portable_exp(b_ * portable_normal_quantile(share)));
    case Kind::empirical: break;
  }
  const auto after = std::lower_bound(quantiles_.begin() + 1, quantiles_.end() - 1, share,
                                      [](const auto& quantile, double wanted) { return quantile.first < wanted; });
  const auto& [share_after, value_after] = *after;
  const auto& [share_before, value_before] = *(after - 1);
  if (share_after <= share_before) return value_after;
  const double part = (share - share_before) / (share_after - share_before);
  return value_before + rounded(part * static_cast<double>(value_after - value_before));
}

}  // namespace penstock
