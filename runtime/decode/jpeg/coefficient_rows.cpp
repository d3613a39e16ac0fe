#include "runtime/decode/jpeg/coefficient_rows.h"

#include <algorithm>
#include <cstring>

namespace penstock {

bool CoefficientRows::read_frame(EncodedView bytes, const ImageHeader& header, int max_scans, JpegFrame& frame) {
  if (!kJpegArithmeticIsTheLibrarys) return false;
  if (!read_baseline_frame(bytes, frame) && !progressive_.read_headers(bytes, max_scans, frame)) return false;
  if (frame.width == header.width && frame.height == header.height) return true;
  forget();
  return false;
}

bool CoefficientRows::begin(EncodedView bytes, const JpegFrame& frame, const SideIndex* index, const McuWindow& window,
                            bool lanes, RestartPointNotes* notes) {
  bytes_ = bytes;
  frame_ = &frame;
  if (index != nullptr && !index->fits(frame)) index = nullptr;  // another file's
  index_ = index;
  notes_ = notes;
  lanes_ = lanes && lane_shape().count > 0;
  columns_ = window.columns;
  end_row_ = window.end_row;
  indexed_end_ = -1;
  if (frame.progressive) {
    method_ = RowMethod::progressive;
    return progressive_.begin(frame);
  }
  const int64_t closed_rows = index == nullptr ? 0 : index->closed_mcus(frame) / frame.mcu_columns;
  indexed_end_ = static_cast<int>(std::min<int64_t>(closed_rows, window.end_row));
  if (indexed_end_ <= window.first_row) return walk_from(window.first_row);
  method_ = RowMethod::index_lanes;
  if (lanes_ && indexed_.begin(bytes, frame, *index, window.columns, window.first_row, indexed_end_)) return true;
  method_ = RowMethod::index;
  return entropy_.begin(bytes, frame);
}

// Without an index, or from where it ends.
bool CoefficientRows::walk_from(int row) {
  indexed_end_ = -1;
  SpeculativeRows::Start start;
  start.point.byte = static_cast<uint32_t>(frame_->scan_begin);
  if (index_ != nullptr) {
    const int64_t wanted = int64_t{row} * frame_->mcu_columns + columns_.first;
    const auto point = std::min(static_cast<size_t>(wanted / index_->interval()), index_->size() - 1);
    start = {static_cast<int64_t>(point) * index_->interval(), index_->at(point)};
  }
  method_ = RowMethod::speculative;
  if (lanes_ && speculative_.begin(bytes_, *frame_, columns_, row, end_row_, start, notes_)) return true;
  method_ = RowMethod::from_start;
  return entropy_.begin(bytes_, *frame_) && (start.mcu == 0 || entropy_.enter(start.point, start.mcu));
}

bool CoefficientRows::read_row(int row, const CoefficientTarget& target) {
  if (row == indexed_end_ && !walk_from(row)) return false;
  if (method_ == RowMethod::index_lanes) return indexed_.read_row(row, target);
  if (method_ == RowMethod::speculative) {
    const SpeculativeRows::Row outcome = speculative_.read_row(row, target);
    if (outcome != SpeculativeRows::Row::ended) return outcome == SpeculativeRows::Row::read;
    method_ = RowMethod::after_speculation;
    return speculative_.hand_over(bytes_, entropy_) && read_on(row, target);
  }
  // entropy.h and progressive_rows.h leave zeros as they are.
  for (size_t c = 0; c < static_cast<size_t>(frame_->components); ++c) {
    if (target.tiles[c] == nullptr) continue;
    std::memset(target.tiles[c], 0,
                target.row_stride[c] * static_cast<size_t>(frame_->component[c].v) * sizeof(int16_t));
  }
  if (method_ == RowMethod::progressive) return progressive_.read_row(row, target);
  if (method_ == RowMethod::index) return go_to_columns(row) && read_columns(row, target);
  return read_on(row, target);
}

// From wherever entropy_ stands to the row's end; what the target has of it already stays.
bool CoefficientRows::read_on(int row, const CoefficientTarget& target) {
  const int64_t row_begin = int64_t{row} * frame_->mcu_columns;
  const int64_t row_end = row_begin + frame_->mcu_columns;
  while (notes_ != nullptr && notes_->wanted() <= row_end) {
    const int64_t wanted = notes_->wanted();
    const int64_t skipped = std::min(wanted, row_begin) - entropy_.next_mcu();
    if (skipped > 0 && !entropy_.skip(skipped)) return false;
    if (wanted > entropy_.next_mcu() && !entropy_.read(static_cast<int>(wanted - row_begin), target)) return false;
    note_restart_point();
  }
  if (entropy_.next_mcu() < row_begin && !entropy_.skip(row_begin - entropy_.next_mcu())) return false;
  return entropy_.next_mcu() == row_end || entropy_.read(frame_->mcu_columns, target);
}

void CoefficientRows::note_restart_point() {
  RestartPoint point;
  if (entropy_.position(point)) {
    notes_->add(point);
  } else {
    notes_->stop();
  }
}

bool CoefficientRows::finish() {
  switch (method_) {
    case RowMethod::index_lanes:
    case RowMethod::speculative: return true;  // they have seen to it
    case RowMethod::index: return reaches_next_point();
    case RowMethod::progressive: return progressive_.finish();
    case RowMethod::from_start:
    case RowMethod::after_speculation: break;
  }
  return entropy_.library_would_stop_without_warning();
}

// To the row's first MCU that is wanted: on from here, or from the last restart point before it, whichever is nearer.
bool CoefficientRows::go_to_columns(int row) {
  const int64_t wanted = int64_t{row} * frame_->mcu_columns + columns_.first;
  const auto point = static_cast<size_t>(wanted / index_->interval());
  if (point >= index_->size()) return false;
  const int64_t entry = static_cast<int64_t>(point) * index_->interval();
  const int64_t here = entropy_.next_mcu();
  if (here > wanted || here < entry) {
    if (!entropy_.enter(index_->at(point), entry)) return false;
  }
  return entropy_.skip(wanted - entropy_.next_mcu());
}

// The wanted columns of a row. Where a restart point is passed on the way, decoding must have come to just that place:
// an index of another file, or a damaged one, is found out.
bool CoefficientRows::read_columns(int row, const CoefficientTarget& target) {
  const int64_t first = int64_t{row} * frame_->mcu_columns;
  const int64_t point = entropy_.next_mcu() / index_->interval() + 1;
  const int64_t mcu = point * index_->interval();
  if (mcu < first + columns_.end && static_cast<size_t>(point) < index_->size()) {
    RestartPoint here;
    if (!entropy_.read(static_cast<int>(mcu - first), target)) return false;
    if (!entropy_.position(here) || !(here == index_->at(static_cast<size_t>(point)))) return false;
  }
  return entropy_.read(columns_.end, target);
}

// At the end, so that even a crop that passes no point on its way has shown that the index is this file's.
bool CoefficientRows::reaches_next_point() {
  const int64_t mcus = int64_t{frame_->mcu_columns} * frame_->mcu_rows;
  const int64_t point = (entropy_.next_mcu() + index_->interval() - 1) / index_->interval();
  const bool last = static_cast<size_t>(point) >= index_->size();
  if (!entropy_.skip((last ? mcus : point * index_->interval()) - entropy_.next_mcu())) return false;
  if (last) return entropy_.at_scan_end();
  RestartPoint here;
  return entropy_.position(here) && here == index_->at(static_cast<size_t>(point));
}

}  // namespace penstock
