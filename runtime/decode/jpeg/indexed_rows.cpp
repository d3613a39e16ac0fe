#include "runtime/decode/jpeg/indexed_rows.h"

#include <algorithm>
#include <cstring>

#include "runtime/decode/jpeg/stuffing.h"

namespace penstock {
namespace {

constexpr size_t kLargestFile = size_t{1} << 28;  // positions of bits have 32 bits

}  // namespace

bool IndexedRows::begin(EncodedView bytes, const JpegFrame& frame, const SideIndex& index, McuColumns columns,
                        int first_row, int end_row) {
  if (frame.restart_interval != 0 || bytes.size() > kLargestFile) return false;
  if (!tables_.lay_out(frame, layout_)) return false;
  // Points so far apart are worth little, and their runs of MCUs would take memory that no row needs.
  if (static_cast<size_t>(index.interval()) * layout_.blocks * kBlockBytes > kBandBytes) return false;
  file_ = reinterpret_cast<const uint8_t*>(bytes.data());
  file_size_ = bytes.size();
  frame_ = &frame;
  index_ = &index;
  columns_ = columns;
  band_end_ = first_row;
  end_row_ = end_row;
  return true;
}

// The row's MCUs, as runs of MCUs from the restart points before them.
void IndexedRows::add_row(int row) {
  const int64_t interval = index_->interval();
  const int64_t begin = int64_t{row} * frame_->mcu_columns + columns_.first;
  const int64_t end = int64_t{row} * frame_->mcu_columns + columns_.end;
  for (int64_t point = begin / interval; point * interval < end; ++point) {
    const int64_t first = point * interval;
    const int64_t last = std::min(first + interval, end);
    // A run of MCUs may belong to two rows.
    if (mcu_runs_.empty() || mcu_runs_.back().first_mcu != first) {
      mcu_runs_.push_back({.point = static_cast<size_t>(point), .first_mcu = first});
    }
    mcu_runs_.back().mcus = static_cast<int>(last - first);
    mcu_runs_.back().whole = last == first + interval;
  }
}

// Rows while their runs of MCUs fit the band, one at least.
void IndexedRows::choose_band(int first_row) {
  mcu_runs_.clear();
  size_t blocks = 0;
  for (band_end_ = first_row; band_end_ < end_row_; ++band_end_) {
    const size_t before = mcu_runs_.size();
    const McuRun last = before > 0 ? mcu_runs_.back() : McuRun{};
    const size_t from = before > 0 ? before - 1 : 0;  // the row may lengthen the last one
    if (before > 0) blocks -= blocks_of(last);
    add_row(band_end_);
    for (size_t i = from; i < mcu_runs_.size(); ++i) blocks += blocks_of(mcu_runs_[i]);
    if (before > 0 && blocks * kBlockBytes > kBandBytes) {
      mcu_runs_.resize(before);
      mcu_runs_.back() = last;
      return;
    }
  }
}

bool IndexedRows::read_band(int first_row) {
  choose_band(first_row);
  if (mcu_runs_.back().point >= index_->size()) return false;
  if (band_end_ == end_row_) {
    // Even a crop that reads no other run of MCUs to its end shows by this one that the index is the file's.
    McuRun& last = mcu_runs_.back();
    const int64_t mcus = int64_t{frame_->mcu_columns} * frame_->mcu_rows;
    last.mcus = static_cast<int>(std::min<int64_t>(index_->interval(), mcus - last.first_mcu));
    last.whole = true;
  }
  size_t blocks = 0;
  size_t most_bytes = 0;
  for (size_t i = 0; i < mcu_runs_.size(); ++i) {
    McuRun& mcu_run = mcu_runs_[i];
    mcu_run.block = blocks;
    blocks += blocks_of(mcu_run);
    const bool follows = i > 0 && mcu_runs_[i - 1].point + 1 == mcu_run.point;
    mcu_run.from = follows ? mcu_runs_[i - 1].to : index_->at(mcu_run.point);
    if (ends_at_point(mcu_run)) mcu_run.to = index_->at(mcu_run.point + 1);
    const size_t end = ends_at_point(mcu_run) ? mcu_run.to.byte + size_t{1} : file_size_;
    const size_t begin = mcu_run.from.byte;
    if (begin < frame_->scan_begin || begin > end || end > file_size_) return false;
    most_bytes += end - begin;
  }
  // Runs of MCUs of a file's own index share no byte but those in which one ends and the next begins.
  static_assert(kMostScratchBytes < size_t{1} << 31, "lanes count bytes in signed numbers of 32 bits");
  const size_t scratch = kLaneScratchBytes + blocks * kBlockBytes;
  if (most_bytes > file_size_ + mcu_runs_.size() || scratch > kMostScratchBytes) return false;
  if (coefficients_.size() * sizeof(int16_t) < scratch) coefficients_.resize(scratch / sizeof(int16_t));
  if (bytes_.size() < most_bytes + kLanePadding) bytes_.resize(most_bytes + kLanePadding);
  bytes_used_ = 0;
  given_ = 0;
  next_in_band_ = 0;
  supported_ = true;
  decode_lanes(tables_, layout_, bytes_.data(), coefficients_.data(), *this);
  return supported_;
}

// Puts the run's bytes behind those of the others.
bool IndexedRows::add_bytes(McuRun& mcu_run, LaneUnit& unit) {
  const bool to_a_point = ends_at_point(mcu_run);
  const uint8_t* const end = file_ + (to_a_point ? mcu_run.to.byte : file_size_);
  unit.bit = static_cast<uint32_t>(bytes_used_ * 8 + mcu_run.from.bit);
  uint8_t* const begin = bytes_.data();
  uint8_t* const room_end = begin + bytes_.size();
  Unstuffed at = unstuff_in_vectors(file_ + mcu_run.from.byte, end, begin + bytes_used_, room_end);
  at = unstuff(at.in, end, file_ + file_size_, at.out, room_end, [](uint8_t*) {});
  bytes_used_ = static_cast<size_t>(at.out - begin);
  mcu_run.end_bit = static_cast<uint32_t>(bytes_used_ * 8);
  // The marker that ends the scan. libjpeg-turbo reads on behind a fill byte, perhaps to the file's end.
  if (!to_a_point) return end - at.in >= 2 && at.in[1] != 0xFF;
  if (at.in != end) return false;  // a marker in between
  if (const uint8_t bit = mcu_run.to.bit; bit > 0) {
    if (end == file_ + file_size_) return false;
    bytes_[bytes_used_++] = *end;
    mcu_run.end_bit += bit;
  }
  return true;
}

bool IndexedRows::feed(size_t lane, const LaneEnd* end, LaneUnit& unit) {
  if (end != nullptr && supported_) supported_ = accept(mcu_runs_[of_lane_[lane]], *end);
  if (!supported_ || given_ == mcu_runs_.size()) return false;
  of_lane_[lane] = given_;
  McuRun& mcu_run = mcu_runs_[given_++];
  unit.blocks = static_cast<uint32_t>(mcu_run.mcus) * layout_.blocks;
  unit.out_byte = static_cast<uint32_t>(kLaneScratchBytes + mcu_run.block * kBlockBytes);
  std::memset(block(mcu_run.block), 0, (size_t{unit.blocks} + 1) * kBlockBytes);
  supported_ = add_bytes(mcu_run, unit);
  unit.end_bit = mcu_run.end_bit;
  return supported_;
}

// Makes DC values of the differences, from the restart point's on; and compares where a whole run of MCUs has led.
bool IndexedRows::accept(const McuRun& mcu_run, const LaneEnd& end) {
  if (!end.fine()) return false;
  std::array<int32_t, 3> dc{};
  for (size_t c = 0; c < 3; ++c) dc[c] = mcu_run.from.dc[c];
  size_t mcu_block = 0;
  add_dc_predictions(block(mcu_run.block), static_cast<size_t>(mcu_run.mcus) * layout_.blocks, layout_, mcu_block, dc);
  if (!mcu_run.whole) return true;
  if (!ends_at_point(mcu_run)) return mcu_run.end_bit - end.place.bit < 8;
  const RestartPoint& to = mcu_run.to;
  return end.place.bit == mcu_run.end_bit && dc[0] == to.dc[0] && dc[1] == to.dc[1] && dc[2] == to.dc[2];
}

bool IndexedRows::read_row(int row, const CoefficientTarget& target) {
  if (row >= band_end_ && !read_band(row)) return false;
  row_.begin(*frame_, layout_, columns_.count());
  const int64_t first = int64_t{row} * frame_->mcu_columns;
  for (int64_t mcu = first + columns_.first; mcu < first + columns_.end; ++mcu) {
    while (mcu >= mcu_runs_[next_in_band_].first_mcu + mcu_runs_[next_in_band_].mcus) ++next_in_band_;
    const McuRun& mcu_run = mcu_runs_[next_in_band_];
    const int16_t* const from = block(mcu_run.block + static_cast<size_t>(mcu - mcu_run.first_mcu) * layout_.blocks);
    row_.add_mcu(from);
  }
  row_.write(target);
  return true;
}

}  // namespace penstock
