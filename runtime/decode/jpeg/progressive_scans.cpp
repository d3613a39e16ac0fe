#include "runtime/decode/jpeg/progressive_scans.h"

#include <algorithm>

#include "runtime/decode/jpeg/frame_reader.h"
#include "runtime/decode/jpeg/stuffing.h"

namespace penstock {
namespace {

constexpr int kLastSmoothed = 9;

// How far each coefficient is known; libjpeg's coef_bits.
struct Progress {
  std::array<std::array<int8_t, 64>, 3> low;  // the lowest bit that came; -1: none
  std::array<bool, 3> begun{};

  Progress() {
    for (auto& component : low) component.fill(-1);
  }
};

bool start_of_scan(FrameReader& reader, Segment s, Progress& progress, ProgressiveScan& scan) {
  JpegFrame& frame = reader.frame;
  const unsigned count = s.u8();
  if (count < 1 || count > static_cast<unsigned>(frame.components) || s.left != 2 * count + 3) return false;
  scan.components = static_cast<int>(count);
  std::array<unsigned, 3> tables{};
  size_t next = 0;
  for (size_t i = 0; i < count; ++i, ++next) {
    const auto id = static_cast<int>(s.u8());
    while (next < static_cast<size_t>(frame.components) && reader.id[next] != id) ++next;
    if (next == static_cast<size_t>(frame.components)) return false;
    scan.component[i] = static_cast<uint8_t>(next);
    tables[i] = s.u8();
  }
  scan.first = static_cast<int>(s.u8());
  scan.last = static_cast<int>(s.u8());
  const unsigned bits = s.u8();
  scan.high = static_cast<int>(bits >> 4);
  scan.low = static_cast<int>(bits & 15);
  if (!s.good || scan.last > 63 || scan.low > 13 || (scan.high != 0 && scan.low != scan.high - 1)) return false;
  const bool dc = scan.first == 0;
  if (dc ? scan.last != 0 : (scan.first > scan.last || count != 1)) return false;

  for (size_t i = 0; i < count; ++i) {
    const size_t c = scan.component[i];
    auto& low = progress.low[c];
    if (!dc && low[0] < 0) return false;
    for (auto k = static_cast<size_t>(scan.first); k <= static_cast<size_t>(scan.last); ++k) {
      // A second first pass would write over what is known, quietly.
      if (low[k] != (scan.high == 0 ? -1 : scan.high)) return false;
      low[k] = static_cast<int8_t>(scan.low);
    }
    if (!progress.begun[c] && !reader.take_quant_table(c)) return false;
    progress.begun[c] = true;
    if (dc && scan.high != 0) continue;  // plain bits
    const unsigned table = dc ? tables[i] >> 4 : tables[i] & 15;
    if (table > 3) return false;
    scan.tables[i] = (dc ? frame.dc : frame.ac)[table];
    if (scan.tables[i].bytes == nullptr) return false;
  }
  scan.restart_interval = frame.restart_interval;
  return true;
}

bool known_to_the_last_bit(const JpegFrame& frame, const Progress& progress) {
  for (size_t c = 0; c < static_cast<size_t>(frame.components); ++c) {
    for (size_t k = 0; k <= kLastSmoothed; ++k) {
      if (progress.low[c][k] != 0) return false;
    }
  }
  return true;
}

void find_refined(std::vector<ProgressiveScan>& scans) {
  for (size_t i = 0; i < scans.size(); ++i) {
    ProgressiveScan& scan = scans[i];
    scan.refined = std::any_of(scans.begin() + static_cast<std::ptrdiff_t>(i) + 1, scans.end(), [&](const auto& later) {
      return later.high != 0 && later.first <= scan.last && later.last >= scan.first &&
             later.component[0] == scan.component[0];
    });
  }
}

}  // namespace

bool ProgressiveScans::read(EncodedView bytes, int max_scans, JpegFrame& frame) {
  frame = JpegFrame{};
  list_.clear();
  segment_ends_.clear();
  FrameReader reader{.frame = frame};
  if (bytes.size() < 4 || bytes[0] != std::byte{0xFF} || bytes[1] != std::byte{0xD8}) return false;
  Progress progress;
  size_t at = 2;
  unsigned marker = 0;
  Segment segment;
  while (next_segment(bytes, at, marker, segment)) {
    const bool header = list_.empty();
    switch (marker) {
      case 0xC2:
        if (!reader.start_of_frame(segment)) return false;
        break;
      case 0xDA: {
        if (header && (!reader.has_frame || !reader.lay_out())) return false;
        if (header && bytes_.size() < bytes.size() + kPadding) {
          bytes_.clear();  // nothing of the last file is to be copied
          bytes_.resize(bytes.size() + kPadding);
        }
        if (list_.size() >= kMostScans || list_.size() >= static_cast<size_t>(std::max(max_scans, 0))) return false;
        ProgressiveScan& scan = list_.emplace_back();
        if (!start_of_scan(reader, segment, progress, scan) || !read_bits(bytes, at, frame, scan)) return false;
        break;
      }
      case 0xD9:
        find_refined(list_);
        frame.progressive = true;
        return !header && known_to_the_last_bit(frame, progress);
      default:
        // JFIF and Adobe speak of the whole image.
        if (!header && (marker == 0xE0 || marker == 0xEE)) return false;
        if (!reader.take(marker, segment)) return false;
    }
  }
  return false;
}

// From `at` to the marker that ends the scan, segment by segment.
bool ProgressiveScans::read_bits(EncodedView file, size_t& at, const JpegFrame& frame, ProgressiveScan& scan) {
  const auto* const begin = reinterpret_cast<const uint8_t*>(file.data());
  const uint8_t* const end = begin + file.size();
  scan.segment = segment_ends_.size();
  scan.segments = 1;
  if (scan.restart_interval != 0) {
    const JpegComponent& only = frame.component[scan.component[0]];
    const int64_t mcus = scan.components > 1 ? int64_t{frame.mcu_columns} * frame.mcu_rows
                                             : int64_t{blocks_across(only)} * blocks_down(only);
    scan.segments = static_cast<size_t>((mcus + scan.restart_interval - 1) / scan.restart_interval);
    if (scan.segment + scan.segments > kMostSegments) return false;
  }
  uint8_t* out = bytes_.data() + (segment_ends_.empty() ? 0 : segment_ends_.back());
  const uint8_t* in = begin + at;
  for (size_t n = 0;; ++n) {
    const Unstuffed stop = unstuff(in, end, end, out, bytes_.data() + bytes_.size(), [](uint8_t*) {});
    if (end - stop.in < 2) return false;
    segment_ends_.push_back(static_cast<size_t>(stop.out - bytes_.data()));
    out = stop.out;
    in = stop.in;
    if (n + 1 == scan.segments) break;
    if (in[1] != 0xD0 + n % 8) return false;
    in += 2;
  }
  at = static_cast<size_t>(in - begin);
  return true;
}

void ProgressiveScans::trim() {
  if (bytes_.size() <= kMostKeptBytes) return;
  bytes_.clear();
  bytes_.shrink_to_fit();
}

}  // namespace penstock
