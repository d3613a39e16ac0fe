#include "runtime/decode/jpeg/side_index.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "runtime/base/wire.h"
#include "runtime/decode/jpeg/entropy.h"
#include "runtime/decode/jpeg/jpeg_frame.h"

namespace penstock {
namespace {

constexpr int kOffsetBits = 20;
constexpr int kDcBits = 12;
constexpr int kShortestInterval = 4;
constexpr int kLongestInterval = 65535;
constexpr uint8_t kVersion = 1;

}  // namespace

// Smaller files would spend more than a per cent on a handful of points, and gain nothing.
int side_index_interval(const SideIndexOptions& options, const JpegFrame& frame, size_t file_bytes) {
  if (options.interval > 0) return std::min(options.interval, kLongestInterval);
  const int64_t mcus = int64_t{frame.mcu_columns} * frame.mcu_rows;
  const auto affordable = static_cast<int64_t>(file_bytes) / 100 * 4 / (frame.components == 1 ? 17 : 29);
  if (affordable < 2) return 0;
  const int64_t interval = (mcus + affordable - 1) / affordable;
  return static_cast<int>(std::clamp<int64_t>(interval, kShortestInterval, kLongestInterval));
}

int learned_interval(const JpegFrame& frame, size_t file_bytes) {
  const int interval = side_index_interval({}, frame, file_bytes);
  return std::min(interval + (2 * interval + 4) / 5, kLongestInterval);
}

void SideIndex::reserve(size_t points) {
  points_.reserve(points * record_bytes());
  groups_.reserve((points + kGroup - 1) / kGroup);
}

SideIndex::SideIndex(int interval, int components, bool partial)
    : interval_(interval), components_(components), partial_(partial) {}

bool SideIndex::add(const RestartPoint& point) {
  const bool begins_group = count_ % kGroup == 0;
  const uint32_t base = begins_group ? point.byte : groups_.back();
  const uint64_t bits = (uint64_t{point.byte} - base) * 8 + point.bit;
  if (point.byte < base || bits >= uint64_t{1} << kOffsetBits) return false;
  uint64_t record = bits;
  for (int c = 0; c < components_; ++c) {
    const int value = point.dc[static_cast<size_t>(c)];
    if (value < -(1 << (kDcBits - 1)) || value >= 1 << (kDcBits - 1)) return false;
    record |= (static_cast<uint64_t>(value) & ((1U << kDcBits) - 1)) << (kOffsetBits + kDcBits * c);
  }
  if (begins_group) groups_.push_back(base);
  std::array<uint8_t, 8> bytes;
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(record >> (8 * i));
  points_.insert(points_.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(record_bytes()));
  ++count_;
  return true;
}

RestartPoint SideIndex::at(size_t n) const {
  uint64_t record = 0;
  const uint8_t* const p = points_.data() + n * record_bytes();
  for (size_t i = 0; i < record_bytes(); ++i) record |= uint64_t{p[i]} << (8 * i);
  const uint64_t bits = record & ((1U << kOffsetBits) - 1);
  RestartPoint point;
  point.byte = static_cast<uint32_t>(groups_[n / kGroup] + bits / 8);
  point.bit = static_cast<uint8_t>(bits % 8);
  for (int c = 0; c < components_; ++c) {
    const auto raw = static_cast<int32_t>(record >> (kOffsetBits + kDcBits * c) & ((1U << kDcBits) - 1));
    point.dc[static_cast<size_t>(c)] = static_cast<int16_t>(raw >= 1 << (kDcBits - 1) ? raw - (1 << kDcBits) : raw);
  }
  return point;
}

bool SideIndex::fits(const JpegFrame& frame) const {
  if (empty() || frame.progressive || components_ != frame.components) return false;
  const int64_t mcus = int64_t{frame.mcu_columns} * frame.mcu_rows;
  const int64_t all = (mcus + interval_ - 1) / interval_;
  const auto count = static_cast<int64_t>(count_);
  if (partial_ ? count > all : count != all) return false;
  const RestartPoint first = at(0);
  return first.byte == frame.scan_begin && first.bit == 0 && first.dc == std::array<int16_t, 3>{};
}

int64_t SideIndex::closed_mcus(const JpegFrame& frame) const {
  const int64_t mcus = int64_t{frame.mcu_columns} * frame.mcu_rows;
  const int64_t next = static_cast<int64_t>(count_) * interval_;
  return next >= mcus ? mcus : next - interval_;
}

int64_t SideIndex::mcus_without_warning(const JpegFrame& frame) const {
  return partial_ ? (static_cast<int64_t>(count_) - 1) * interval_ : int64_t{frame.mcu_columns} * frame.mcu_rows;
}

std::string SideIndex::serialise() const {
  WireWriter out;
  out.u8(kVersion);
  out.u8(static_cast<uint8_t>(components_));
  out.u16(static_cast<uint16_t>(interval_));
  out.u32(static_cast<uint32_t>(count_));
  for (const uint32_t base : groups_) out.u32(base);
  out.raw(points_.data(), points_.size());
  return {reinterpret_cast<const char*>(out.bytes().data()), out.size()};
}

bool SideIndex::read(std::span<const std::byte> text, SideIndex& index) {
  if (text.size() < 8) return false;
  WireReader in(text);
  if (in.u8() != kVersion) return false;
  index.components_ = in.u8();
  index.interval_ = in.u16();
  index.count_ = in.u32();
  index.partial_ = false;
  if ((index.components_ != 1 && index.components_ != 3) || index.interval_ < 1) return false;
  const size_t groups = (index.count_ + kGroup - 1) / kGroup;
  if (in.left() != groups * 4 + index.count_ * index.record_bytes()) return false;
  index.groups_.resize(groups);
  for (uint32_t& base : index.groups_) base = in.u32();
  const auto raw = in.raw(in.left());
  index.points_.resize(raw.size());
  std::memcpy(index.points_.data(), raw.data(), raw.size());
  return true;
}

bool build_side_index(EncodedView bytes, const SideIndexOptions& options, SideIndex& index) {
  index = {};
  JpegFrame frame;
  EntropyDecoder entropy;
  if (bytes.size() > UINT32_MAX || !read_baseline_frame(bytes, frame) || !entropy.begin(bytes, frame)) return false;
  const int interval = side_index_interval(options, frame, bytes.size());
  if (interval == 0) return false;
  SideIndex made(interval, frame.components);
  const int64_t mcus = int64_t{frame.mcu_columns} * frame.mcu_rows;
  for (int64_t mcu = 0; mcu < mcus; mcu += interval) {
    RestartPoint point;
    if (!entropy.position(point) || !made.add(point)) return false;
    if (!entropy.skip(std::min<int64_t>(interval, mcus - mcu))) return false;
  }
  if (!entropy.library_would_stop_without_warning() || !entropy.at_scan_end()) return false;
  index = std::move(made);
  return true;
}

}  // namespace penstock
