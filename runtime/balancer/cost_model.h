// What a chunk costs: fixed + per_byte * bytes + per_pixel * pixels, learned from finished chunks.
//
//   CostModel model;
//   const double expected = model.predict_ns(bytes, pixels);
//   speed.observe(expected, busy_ns);          // per loader: how it compares with that
//   model.observe(bytes, pixels, busy_ns);
//
// Purpose: tell fast loaders from slow ones although chunks differ. One model for each class of executors (recursive
//   least squares whose weights may drift), one speed for each loader (expected over actual time, exponentially
//   weighted).
// Determinism: IEEE additions, multiplications and divisions only, so equal inputs give equal bits everywhere; the
//   build turns contraction off.
// Thread-safety: plain values; one owner.
#pragma once

#include <array>
#include <cstdint>

namespace penstock {

class CostModel {
 public:
  CostModel();
  void observe(int64_t bytes, int64_t pixels, int64_t busy_ns);
  double predict_ns(int64_t bytes, int64_t pixels) const;  // 0 before the first observation, never negative

  int64_t samples() const { return samples_; }
  double mean_ns() const { return samples_ == 0 ? 0 : busy_ns_ / static_cast<double>(samples_); }  // of all of them
  double fixed_ns() const;
  double ns_per_byte() const;
  double ns_per_pixel() const;

 private:
  using Vector = std::array<double, 3>;
  static Vector regressors(int64_t bytes, int64_t pixels);

  int64_t samples_ = 0;
  double busy_ns_ = 0;
  Vector weights_{};                    // in milliseconds per regressor
  std::array<Vector, 3> covariance_{};  // of the weights, up to the noise's variance
};

// Speed of one loader's threads relative to the mean cost of its class.
class SpeedEstimate {
 public:
  void observe(double expected_ns, int64_t busy_ns);
  double value() const { return value_; }  // 1 until observed, within [1/64, 64]
  int64_t samples() const { return samples_; }

 private:
  int64_t samples_ = 0;
  double expected_ = 0;
  double busy_ = 0;
  double value_ = 1;
};

}  // namespace penstock
