#include "runtime/pixels/row_resampler.h"

#include <algorithm>
#include <cstring>

namespace penstock {
namespace {

constexpr int kBandRows = static_cast<int>(kResampleBandRows);
constexpr int kBandGroups = kBandRows / 4;
constexpr int kSpareGroups = 16;  // so that rows are moved to the front but rarely

size_t rounded_up(size_t n, size_t to) {
  return (n + to - 1) / to * to;
}

// The most groups of rows that are kept for results to come, when a band is complete.
int most_groups_kept(const Taps& down) {
  int most = 0;
  int first = INT32_MAX;
  for (int i = down.count() - 1; i >= 0; --i) {
    const auto at = static_cast<size_t>(i);
    first = std::min(first, down.start[at]);
    most = std::max(most, down.start[at] + down.size[at] - first);
  }
  return most / 4 + 2;
}

}  // namespace

void RowResampler::begin(const Taps& across, const Taps& down, const ResampleTarget& target) {
  across_ = &across;
  down_ = &down;
  target_ = target;
  const int first_column = across.begin();
  first_row_ = down.begin();
  band_.first_column = first_column / 4 * 4;
  row_offset_ = static_cast<size_t>(first_column - band_.first_column);
  const auto columns = static_cast<size_t>(across.end() - band_.first_column);
  static_assert(kRowSinkPadding <= PlanarBand::kPadding);
  // An odd number of cache lines: sixteen rows at powers of two would want the same few places of the cache.
  band_.row_stride = (rounded_up(columns + PlanarBand::kPadding, 64) / 64 | 1) * 64;
  band_.plane_stride = band_.row_stride * kResampleBandRows;
  band_.data = band_memory_.get(3 * band_.plane_stride + PlanarBand::kPadding);
  const auto width = static_cast<size_t>(across.count());
  quads_.plane_stride = 4 * rounded_up(width, QuadRows::kColumnsRoundedTo);
  quads_.group_stride = 3 * quads_.plane_stride;
  group_capacity_ = most_groups_kept(down) + kBandGroups + kSpareGroups;
  quads_.data = quad_memory_.get(quads_.group_stride * static_cast<size_t>(group_capacity_));
  plan_band(across, target.mirror_x, plan_);
  scratch_.get(plan_.scratch_bytes);
  if (!target.planar) line_.get(3 * width);
  start();
}

void RowResampler::start() {
  band_row_ = first_row_ / 4 * 4;
  first_group_ = first_row_ / 4;
  filled_ = first_row_ - band_row_;
  next_ = 0;
}

PlanarRow RowResampler::row(int y) {
  if (y == 0) start();
  if (filled_ == kBandRows) take_band();
  uint8_t* const red = band_memory_.data() + static_cast<size_t>(filled_++) * band_.row_stride + row_offset_;
  return {red, red + band_.plane_stride, red + 2 * band_.plane_stride};
}

void RowResampler::finish() {
  take_band();
}

void RowResampler::take_band() {
  make_room();
  QuadRows to = quads_;
  to.data += static_cast<size_t>(band_row_ / 4 - first_group_) * quads_.group_stride;
  resample_band(band_, *across_, plan_, scratch_.data(), to);
  const int end = band_row_ + filled_;
  band_row_ += kBandRows;
  filled_ = 0;
  for (; next_ < down_->count(); ++next_) {
    const auto at = static_cast<size_t>(next_);
    if (down_->start[at] + down_->size[at] > end) break;
    write_row(next_);
  }
}

// For the band's groups, behind those that results to come need.
void RowResampler::make_room() {
  const int band_group = band_row_ / 4;
  if (band_group + kBandGroups - first_group_ <= group_capacity_) return;
  int keep = band_group;
  for (int i = next_; i < down_->count(); ++i) keep = std::min(keep, down_->first_quad(i));
  std::memmove(quads_.data, quads_.data + static_cast<size_t>(keep - first_group_) * quads_.group_stride,
               static_cast<size_t>(band_group - keep) * quads_.group_stride);
  first_group_ = keep;
}

void RowResampler::write_row(int y) {
  const auto width = static_cast<size_t>(across_->count());
  const int height = down_->count();
  const uint8_t* const from =
      quads_.data + static_cast<size_t>(down_->first_quad(y) - first_group_) * quads_.group_stride;
  const auto to_y = static_cast<size_t>(target_.mirror_y ? height - 1 - y : y);
  const size_t plane_bytes = target_.planar ? width * static_cast<size_t>(height) : width;
  uint8_t* const to = target_.planar ? target_.data + to_y * width : line_.data();
  for (size_t plane = 0; plane < 3; ++plane) {
    resample_down(from + plane * quads_.plane_stride, quads_.group_stride, *down_, y, width, to + plane * plane_bytes);
  }
  if (!target_.planar) {
    interleave_row(to, to + width, to + 2 * width, across_->count(), target_.data + to_y * width * 3);
  }
}

}  // namespace penstock
