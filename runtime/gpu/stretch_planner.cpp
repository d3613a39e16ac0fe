#include "runtime/gpu/stretch_planner.h"

#include <algorithm>
#include <cstring>

#include "runtime/decode/jpeg/indexed_rows.h"

namespace penstock {
namespace {

constexpr size_t kMostBlockBytes = 2 * 64 * (16 + 15) / 8;  // 64 codes and values, each byte a stuffed 0xFF
constexpr int64_t kFewestBlocks = 32;                       // of a stretch at restart markers: some 400 bytes

}  // namespace

bool StretchPlanner::begin(EncodedView bytes, const JpegFrame& frame, int64_t mcus_of_a_thread) {
  file_ = bytes;
  frame_ = &frame;
  stretches_.clear();
  pieces_.clear();
  bytes_ = 0;
  if (bytes.size() > largest_scanned_file || !tables_.make(frame)) return false;
  // Points so far apart that the CPU would not go by them are worth less here.
  return static_cast<size_t>(mcus_of_a_thread) * tables_.blocks() * 128 <= IndexedRows::band_bytes;
}

bool StretchPlanner::plan(EncodedView bytes, const JpegFrame& frame, const SideIndex* index, const McuWindow& window) {
  if (index == nullptr || frame.progressive || frame.restart_interval != 0) return false;
  if (!index->fits(frame) || index->closed_mcus(frame) / frame.mcu_columns < window.end_row) return false;
  index_ = index;
  columns_ = window.columns;
  if (!begin(bytes, frame, index->interval())) return false;
  for (int row = window.first_row; row < window.end_row; ++row) add_row(row);
  if (stretches_.empty()) return false;
  // Even a crop that reads no other stretch to its end shows by this one that the index is the file's.
  const int64_t mcus = int64_t{frame.mcu_columns} * frame.mcu_rows;
  CardStretch& last = stretches_.back();
  last.mcus = static_cast<uint32_t>(std::min<int64_t>(index->interval(), mcus - last.first_mcu));
  last.end = CardStretch::End::point;
  for (size_t i = 0; i < stretches_.size(); ++i) {
    if (!place(i)) return false;
  }
  // Stretches of a file's own index share no byte but those in which one ends and the next begins.
  return bytes_ <= bytes.size() + 2 * stretches_.size();
}

bool StretchPlanner::plan_at_restarts(EncodedView bytes, const JpegFrame& frame, const McuWindow& window) {
  const int64_t interval = frame.restart_interval;
  const int64_t mcus = int64_t{frame.mcu_columns} * window.end_row;
  if (frame.progressive || interval == 0 || interval >= mcus || !begin(bytes, frame, interval)) return false;
  const int64_t blocks = interval * static_cast<int64_t>(tables_.blocks());
  const int64_t intervals_of_stretch = (kFewestBlocks + blocks - 1) / blocks;
  Piece scan{frame.scan_begin, frame.scan_begin};
  size_t marker = 0;
  for (int64_t number = 0, first = 0; first < mcus; ++number, first += interval) {
    if (!find_marker(file_, scan.end, marker)) return false;
    if (number % intervals_of_stretch == 0) {
      stretches_.push_back({.byte = static_cast<uint32_t>(scan.end - scan.begin),
                            .first_mcu = static_cast<uint32_t>(first),
                            .end = CardStretch::End::marker});
    }
    CardStretch& stretch = stretches_.back();
    stretch.mcus = static_cast<uint32_t>(std::min(first + interval, mcus) - stretch.first_mcu);
    stretch.end_byte = static_cast<uint32_t>(marker - scan.begin);
    scan.end = marker + 2;
    if (first + interval < mcus && file_[marker + 1] != static_cast<std::byte>(0xD0 + number % 8)) return false;
  }
  // The CPU stops with the window's last row, and what stands between there and the next marker is nobody's.
  stretches_.back().end = CardStretch::End::quiet;
  pieces_.push_back(scan);
  bytes_ = scan.end - scan.begin;
  return true;
}

// The row's MCUs, as stretches from the entry points before them; one may belong to two rows.
void StretchPlanner::add_row(int row) {
  const int64_t interval = index_->interval();
  const int64_t begin = int64_t{row} * frame_->mcu_columns + columns_.first;
  const int64_t end = int64_t{row} * frame_->mcu_columns + columns_.end;
  for (int64_t first = begin / interval * interval; first < end; first += interval) {
    if (stretches_.empty() || int64_t{stretches_.back().first_mcu} != first) {
      stretches_.push_back({.first_mcu = static_cast<uint32_t>(first)});
    }
    const int64_t last = std::min(first + interval, end);
    stretches_.back().mcus = static_cast<uint32_t>(last - first);
    stretches_.back().end = last == first + interval ? CardStretch::End::point : CardStretch::End::early;
  }
}

// Where the stretch's bytes are in the file, and where among those that are copied.
bool StretchPlanner::place(size_t number) {
  CardStretch& stretch = stretches_[number];
  const size_t point = stretch.first_mcu / static_cast<uint32_t>(index_->interval());
  if (point >= index_->size()) return false;
  const EntryPoint from = index_->at(point);
  const size_t begin = from.byte;
  size_t end = 0;
  if (begin < frame_->scan_begin || begin > file_.size()) return false;
  if (point + 1 < index_->size()) {
    const EntryPoint to = index_->at(point + 1);
    end = to.byte;
    stretch.end_bit = to.bit;
    std::copy(to.dc.begin(), to.dc.end(), stretch.end_dc);
  } else {
    if (!find_marker(file_, begin, end)) return false;
    if (stretch.end == CardStretch::End::point) stretch.end = CardStretch::End::marker;
  }
  // Both bytes of an 0xFF in which the next one begins; of the marker, too.
  const size_t copied = std::min(end + 2, file_.size());
  if (end < begin || end >= file_.size()) return false;
  // A thread looks at all of them, and a card that takes too long counts as lost.
  const size_t blocks = static_cast<size_t>(index_->interval()) * tables_.blocks();
  if (end - begin > blocks * kMostBlockBytes + 1) return false;
  // No MCU begins with the zero that follows an 0xFF.
  if (end > begin && file_[end] == std::byte{0} && file_[end - 1] == std::byte{0xFF}) return false;
  if (pieces_.empty() || begin < pieces_.back().begin || begin > pieces_.back().end) pieces_.push_back({begin, begin});
  Piece& piece = pieces_.back();
  const size_t piece_at = bytes_ - (piece.end - piece.begin);  // among those copied
  if (copied > piece.end) {
    bytes_ += copied - piece.end;
    piece.end = copied;
  }
  stretch.byte = static_cast<uint32_t>(piece_at + (begin - piece.begin));
  stretch.bit = from.bit;
  stretch.end_byte = static_cast<uint32_t>(piece_at + (end - piece.begin));
  std::copy(from.dc.begin(), from.dc.end(), stretch.dc);
  return true;
}

void StretchPlanner::copy_bytes(std::byte* to) const {
  for (const Piece& piece : pieces_) {
    std::memcpy(to, file_.data() + piece.begin, piece.end - piece.begin);
    to += piece.end - piece.begin;
  }
}

}  // namespace penstock
