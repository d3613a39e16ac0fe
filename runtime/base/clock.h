// Time as a seam: production reads the monotonic clock, tests step their own, so that no test needs to sleep.
#pragma once

#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>

namespace penstock {

using Nanoseconds = int64_t;
constexpr Nanoseconds kMicrosecond = 1'000;
constexpr Nanoseconds kMillisecond = 1'000'000;
constexpr Nanoseconds kSecond = 1'000'000'000;

constexpr double as_seconds(Nanoseconds time) noexcept {
  return static_cast<double>(time) * 1e-9;
}

// For messages: "300 s", "0.25 s".
inline std::string in_seconds(Nanoseconds time) {
  std::array<char, 40> text{};
  std::snprintf(text.data(), text.size(), "%.12g s", std::round(as_seconds(time) * 1e3) / 1e3);
  return text.data();
}

class Clock {
 public:
  virtual ~Clock() = default;
  virtual Nanoseconds now() const noexcept = 0;  // monotonic; the origin is arbitrary
};

class MonotonicClock final : public Clock {
 public:
  Nanoseconds now() const noexcept override {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
};

// Moves only when told to. Not thread-safe: for single-threaded tests.
class ManualClock final : public Clock {
 public:
  Nanoseconds now() const noexcept override { return now_; }
  void advance(Nanoseconds by) noexcept { now_ += by; }

 private:
  Nanoseconds now_ = 0;
};

}  // namespace penstock
