#include "runtime/gpu/speed_split.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace penstock {
namespace {

constexpr double kSecond_ns = 1e9;
constexpr double kLeastShare = 1.0 / 64;  // for noticing
constexpr double kRarestShare = 1.0 / 1024;
constexpr double kCostOfNoticing = 0.02;  // most that it may cost, of the threads' time
constexpr double kFewestTogether = 8;     // images for a GPU
constexpr double kLongestWait_s = 0.1;    // that a chunk is held up by them
constexpr double kFurthest = 8;           // a batch's time, from what was expected
constexpr int64_t kFirstBatches = 1;      // of a GPU: its driver loads what it needs when that is first used

// The share of the dearer way for noticing, where the other way costs `cheap`.
double least_share(double cheap, double dear) {
  if (dear <= cheap) return kLeastShare;
  return std::clamp(kCostOfNoticing * cheap / (dear - cheap), kRarestShare, kLeastShare);
}

}  // namespace

void FollowingMean::observe(double value) {
  if (known() && value_ > 0) value = std::min(value, furthest_ * value_);
  ++count_;
  value_ += (value - value_) * std::max(1 / span_, 1 / static_cast<double>(count_));
}

double SpeedSplit::Speed::images_per_s() const {
  return lost || images.value() <= 0 || ns.value() <= 0 ? 0 : images.value() / ns.value() * kSecond_ns;
}

SpeedSplit::SpeedSplit(int threads, size_t gpus) : threads_(threads), gpus_(gpus) {}

double SpeedSplit::rate() const {
  double sum = 0;
  for (const Speed& gpu : gpus_) sum += gpu.images_per_s();
  return sum;
}

double SpeedSplit::gpu_share() const {
  const bool none = std::all_of(gpus_.begin(), gpus_.end(), [](const Speed& gpu) { return gpu.lost; });
  if (none) return 0;
  const bool measured = std::any_of(gpus_.begin(), gpus_.end(),
                                    [](const Speed& gpu) { return !gpu.lost && gpu.batches > kFirstBatches; });
  if (!measured || !make_.known() || !feed_.known()) return 0.5;
  // What GPUs never take is the threads' work besides, a part of it for each image of the others.
  const double either = either_.value();
  const double besides = either > 0 && other_.known() ? other_.value() * (1 - either) / either : 0;
  const double make = make_.value() + besides;
  const double feed = feed_.value() + besides;
  const double fewest = least_share(make, feed);
  const double most = 1 - least_share(feed, make);
  if (feed >= make) return fewest;
  const double rate_per_ns = rate() / kSecond_ns;
  // threads / (s * feed + (1 - s) * make) = rate / s
  const double best = rate_per_ns * make / (threads_ + rate_per_ns * (make - feed));
  return std::clamp(best, std::min(fewest, most), most);
}

double SpeedSplit::gpu_images_per_s(size_t gpu) const {
  return gpus_[gpu].images_per_s();
}

int64_t SpeedSplit::for_gpus(int64_t images) {
  const double share = gpu_share();
  if (share <= 0) {
    credit_ = 0;
    return 0;
  }
  const double either = either_.known() ? either_.value() : 1;
  const auto most = static_cast<double>(images);
  credit_ = std::min(credit_ + share * either * most, 2 * std::max(most, kFewestTogether));
  const double speed = rate();
  double together = std::min(kFewestTogether, most);
  if (speed > 0) together = std::clamp(speed * kLongestWait_s, 1.0, together);
  const double now = std::min(std::floor(credit_), most);
  if (now < together) return 0;
  credit_ -= now;
  return static_cast<int64_t>(now);
}

double SpeedSplit::wait_s(size_t gpu, int64_t images) const {
  const Speed& speed = gpus_[gpu];
  const double known = speed.images_per_s();
  const auto ahead = static_cast<double>(speed.queued);
  if (known > 0) return (ahead + static_cast<double>(images)) / known;
  // One that nobody has tried is tried, with one batch; one whose batches fail is the last.
  return speed.batches <= kFirstBatches ? ahead : std::numeric_limits<double>::max();
}

void SpeedSplit::begun(size_t gpu, int64_t images) {
  gpus_[gpu].queued += images;
}

void SpeedSplit::made(int64_t ns) {
  make_.observe(static_cast<double>(ns));
  either_.observe(1);
}
void SpeedSplit::fed(int64_t ns) {
  feed_.observe(static_cast<double>(ns));
  either_.observe(1);
}
void SpeedSplit::other(int64_t ns) {
  other_.observe(static_cast<double>(ns));
  either_.observe(0);
}

void SpeedSplit::done(size_t gpu, int64_t begun, int64_t images, int64_t gpu_ns) {
  Speed& speed = gpus_[gpu];
  speed.queued = std::max<int64_t>(speed.queued - begun, 0);
  if (++speed.batches <= kFirstBatches) return;
  auto ns = static_cast<double>(gpu_ns);
  if (const double known = speed.images_per_s(); known > 0 && images > 0) {
    ns = std::min(ns, kFurthest * static_cast<double>(images) / known * kSecond_ns);
  }
  speed.images.observe(static_cast<double>(images));
  speed.ns.observe(ns);
}

void SpeedSplit::lost(size_t gpu) {
  gpus_[gpu].lost = true;
}

}  // namespace penstock
