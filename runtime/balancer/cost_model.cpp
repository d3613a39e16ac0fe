#include "runtime/balancer/cost_model.h"

#include <algorithm>

namespace penstock {

namespace {

// Weights are taken to wander by this variance per chunk, so some 500 chunks are remembered. Exponential forgetting
// would let the covariance grow without bound where all chunks are alike; this grows by a few thousand in 10^9 chunks.
constexpr double kDrift = 4e-6;
constexpr double kFirstVariance = 1e4;     // weights are milliseconds; anything plausible is within
constexpr double kUnit = 1.0 / (1 << 20);  // bytes and pixels in mebi, so that the regressors are of one size
constexpr double kMillisecond = 1e6;

}  // namespace

CostModel::CostModel() {
  for (size_t i = 0; i < 3; ++i) covariance_[i][i] = kFirstVariance;
}

CostModel::Vector CostModel::regressors(int64_t bytes, int64_t pixels) {
  return {1.0, static_cast<double>(bytes) * kUnit, static_cast<double>(pixels) * kUnit};
}

void CostModel::observe(int64_t bytes, int64_t pixels, int64_t busy_ns) {
  if (busy_ns <= 0 || bytes < 0 || pixels < 0) return;
  const Vector x = regressors(bytes, pixels);
  Vector px{};
  for (size_t i = 0; i < 3; ++i) px[i] = covariance_[i][0] * x[0] + covariance_[i][1] * x[1] + covariance_[i][2] * x[2];
  const double scale = 1.0 + x[0] * px[0] + x[1] * px[1] + x[2] * px[2];
  const double error =
      static_cast<double>(busy_ns) / kMillisecond - (weights_[0] * x[0] + weights_[1] * x[1] + weights_[2] * x[2]);
  for (size_t i = 0; i < 3; ++i) weights_[i] += px[i] / scale * error;
  for (size_t i = 0; i < 3; ++i) {
    for (size_t j = i; j < 3; ++j) {
      covariance_[i][j] = covariance_[i][j] - px[i] * px[j] / scale;
      covariance_[j][i] = covariance_[i][j];  // rounding must not make it lopsided
    }
    covariance_[i][i] = std::max(covariance_[i][i], 0.0) + kDrift;
  }
  ++samples_;
  busy_ns_ += static_cast<double>(busy_ns);
}

double CostModel::predict_ns(int64_t bytes, int64_t pixels) const {
  const Vector x = regressors(bytes, pixels);
  const double ms = weights_[0] * x[0] + weights_[1] * x[1] + weights_[2] * x[2];
  return std::max(0.0, ms * kMillisecond);
}

double CostModel::fixed_ns() const {
  return weights_[0] * kMillisecond;
}
double CostModel::ns_per_byte() const {
  return weights_[1] * kUnit * kMillisecond;
}
double CostModel::ns_per_pixel() const {
  return weights_[2] * kUnit * kMillisecond;
}

void SpeedEstimate::observe(double expected_ns, int64_t busy_ns) {
  if (expected_ns <= 0 || busy_ns <= 0) return;
  // Averages of both times, not of their ratio: one cheap chunk that was held up says little about the speed.
  ++samples_;
  const double weight = std::max(0.1, 1.0 / static_cast<double>(samples_));
  expected_ += weight * (expected_ns - expected_);
  busy_ += weight * (static_cast<double>(busy_ns) - busy_);
  value_ = std::clamp(expected_ / busy_, 1.0 / 64, 64.0);
}

}  // namespace penstock
