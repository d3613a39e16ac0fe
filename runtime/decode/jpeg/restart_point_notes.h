// Restart points that a decoder passes on its way through a scan, noted for a partial index (side_index.h).
//
//   RestartPointNotes notes;
//   notes.begin(interval, index.size() * interval, mcus);          // where the points known so far end
//   while (notes.wanted() <= last) { ...; notes.add(point); }      // the point before MCU wanted()
//   for (const RestartPoint& point : notes.points()) index.add(point);
//
// Thread-safety: one per thread; keeps its memory.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "runtime/decode/jpeg/side_index.h"

namespace penstock {

class RestartPointNotes {
 public:
  static constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

  // `interval` 0: nothing is noted.
  void begin(int interval, int64_t first_mcu, int64_t mcus) {
    points_.clear();
    interval_ = interval;
    mcus_ = mcus;
    wanted_ = interval > 0 && first_mcu < mcus ? first_mcu : kNone;
  }
  // The MCU whose beginning is to be noted next.
  int64_t wanted() const noexcept { return wanted_; }
  void add(const RestartPoint& point) {
    points_.push_back(point);
    wanted_ += interval_;
    if (wanted_ >= mcus_) wanted_ = kNone;
  }
  // A point could not be told: without it later ones are worth nothing.
  void stop() noexcept { wanted_ = kNone; }
  std::span<const RestartPoint> points() const noexcept { return points_; }

 private:
  int interval_ = 0;
  int64_t mcus_ = 0;
  int64_t wanted_ = kNone;
  std::vector<RestartPoint> points_;
};

}  // namespace penstock
