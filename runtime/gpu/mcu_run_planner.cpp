#include "runtime/gpu/mcu_run_planner.h"

#include <algorithm>
#include <cstring>

#include "runtime/decode/jpeg/indexed_rows.h"

namespace penstock {
namespace {

constexpr size_t kMostBlockBytes = 2 * 64 * (16 + 15) / 8;  // 64 codes and values, each byte a stuffed 0xFF
constexpr int64_t kFewestBlocks = 32;                       // of a run of MCUs at restart markers: some 400 bytes

}  // namespace

bool McuRunPlanner::begin(EncodedView bytes, const JpegFrame& frame, int64_t mcus_of_a_thread) {
  file_ = bytes;
  frame_ = &frame;
  mcu_runs_.clear();
  ranges_.clear();
  bytes_ = 0;
  if (bytes.size() > kLargestScannedFile || !tables_.make(frame)) return false;
  // Points so far apart that the CPU would not go by them are worth less here.
  return static_cast<size_t>(mcus_of_a_thread) * tables_.blocks() * 128 <= IndexedRows::kBandBytes;
}

bool McuRunPlanner::plan(EncodedView bytes, const JpegFrame& frame, const SideIndex* index, const McuWindow& window) {
  if (index == nullptr || frame.progressive || frame.restart_interval != 0) return false;
  if (!index->fits(frame) || index->closed_mcus(frame) / frame.mcu_columns < window.end_row) return false;
  index_ = index;
  columns_ = window.columns;
  if (!begin(bytes, frame, index->interval())) return false;
  for (int row = window.first_row; row < window.end_row; ++row) add_row(row);
  if (mcu_runs_.empty()) return false;
  // Even a crop that reads no other run of MCUs to its end shows by this one that the index is the file's.
  const int64_t mcus = int64_t{frame.mcu_columns} * frame.mcu_rows;
  GpuMcuRun& last = mcu_runs_.back();
  last.mcus = static_cast<uint32_t>(std::min<int64_t>(index->interval(), mcus - last.first_mcu));
  last.end = GpuMcuRun::End::point;
  for (size_t i = 0; i < mcu_runs_.size(); ++i) {
    if (!place(i)) return false;
  }
  // Runs of MCUs of a file's own index share no byte but those in which one ends and the next begins.
  return bytes_ <= bytes.size() + 2 * mcu_runs_.size();
}

bool McuRunPlanner::plan_at_restarts(EncodedView bytes, const JpegFrame& frame, const McuWindow& window) {
  const int64_t interval = frame.restart_interval;
  const int64_t mcus = int64_t{frame.mcu_columns} * window.end_row;
  if (frame.progressive || interval == 0 || interval >= mcus || !begin(bytes, frame, interval)) return false;
  const int64_t blocks = interval * static_cast<int64_t>(tables_.blocks());
  const int64_t intervals_of_mcu_run = (kFewestBlocks + blocks - 1) / blocks;
  ByteRange scan{frame.scan_begin, frame.scan_begin};
  size_t marker = 0;
  for (int64_t number = 0, first = 0; first < mcus; ++number, first += interval) {
    if (!find_marker(file_, scan.end, marker)) return false;
    if (number % intervals_of_mcu_run == 0) {
      mcu_runs_.push_back({.byte = static_cast<uint32_t>(scan.end - scan.begin),
                           .first_mcu = static_cast<uint32_t>(first),
                           .end = GpuMcuRun::End::marker});
    }
    GpuMcuRun& mcu_run = mcu_runs_.back();
    mcu_run.mcus = static_cast<uint32_t>(std::min(first + interval, mcus) - mcu_run.first_mcu);
    mcu_run.end_byte = static_cast<uint32_t>(marker - scan.begin);
    scan.end = marker + 2;
    if (first + interval < mcus && file_[marker + 1] != static_cast<std::byte>(0xD0 + number % 8)) return false;
  }
  // The CPU stops with the window's last row, and what stands between there and the next marker is nobody's.
  mcu_runs_.back().end = GpuMcuRun::End::no_warnings;
  ranges_.push_back(scan);
  bytes_ = scan.end - scan.begin;
  return true;
}

// The row's MCUs, as runs of MCUs from the restart points before them; one may belong to two rows.
void McuRunPlanner::add_row(int row) {
  const int64_t interval = index_->interval();
  const int64_t begin = int64_t{row} * frame_->mcu_columns + columns_.first;
  const int64_t end = int64_t{row} * frame_->mcu_columns + columns_.end;
  for (int64_t first = begin / interval * interval; first < end; first += interval) {
    if (mcu_runs_.empty() || int64_t{mcu_runs_.back().first_mcu} != first) {
      mcu_runs_.push_back({.first_mcu = static_cast<uint32_t>(first)});
    }
    const int64_t last = std::min(first + interval, end);
    mcu_runs_.back().mcus = static_cast<uint32_t>(last - first);
    mcu_runs_.back().end = last == first + interval ? GpuMcuRun::End::point : GpuMcuRun::End::early;
  }
}

// Where the run's bytes are in the file, and where among those that are copied.
bool McuRunPlanner::place(size_t number) {
  GpuMcuRun& mcu_run = mcu_runs_[number];
  const size_t point = mcu_run.first_mcu / static_cast<uint32_t>(index_->interval());
  if (point >= index_->size()) return false;
  const RestartPoint from = index_->at(point);
  const size_t begin = from.byte;
  size_t end = 0;
  if (begin < frame_->scan_begin || begin > file_.size()) return false;
  if (point + 1 < index_->size()) {
    const RestartPoint to = index_->at(point + 1);
    end = to.byte;
    mcu_run.end_bit = to.bit;
    std::copy(to.dc.begin(), to.dc.end(), mcu_run.end_dc);
  } else {
    if (!find_marker(file_, begin, end)) return false;
    if (mcu_run.end == GpuMcuRun::End::point) mcu_run.end = GpuMcuRun::End::marker;
  }
  // Both bytes of an 0xFF in which the next one begins; of the marker, too.
  const size_t copied = std::min(end + 2, file_.size());
  if (end < begin || end >= file_.size()) return false;
  // A thread looks at all of them, and a GPU that takes too long counts as lost.
  const size_t blocks = static_cast<size_t>(index_->interval()) * tables_.blocks();
  if (end - begin > blocks * kMostBlockBytes + 1) return false;
  // No MCU begins with the zero that follows an 0xFF.
  if (end > begin && file_[end] == std::byte{0} && file_[end - 1] == std::byte{0xFF}) return false;
  if (ranges_.empty() || begin < ranges_.back().begin || begin > ranges_.back().end) ranges_.push_back({begin, begin});
  ByteRange& range = ranges_.back();
  const size_t range_at = bytes_ - (range.end - range.begin);  // among those copied
  if (copied > range.end) {
    bytes_ += copied - range.end;
    range.end = copied;
  }
  mcu_run.byte = static_cast<uint32_t>(range_at + (begin - range.begin));
  mcu_run.bit = from.bit;
  mcu_run.end_byte = static_cast<uint32_t>(range_at + (end - range.begin));
  std::copy(from.dc.begin(), from.dc.end(), mcu_run.dc);
  return true;
}

void McuRunPlanner::copy_bytes(std::byte* to) const {
  for (const ByteRange& range : ranges_) {
    std::memcpy(to, file_.data() + range.begin, range.end - range.begin);
    to += range.end - range.begin;
  }
}

}  // namespace penstock
