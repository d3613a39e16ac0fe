#include "runtime/decode/speculative_rows.h"

#include <algorithm>
#include <cstring>

#include "runtime/decode/lane_step.h"
#include "runtime/decode/stuffing.h"

namespace penstock {
namespace {

constexpr uint32_t block_bytes = 128;
// With fewer bytes a block, a lane would run out of blocks before its chunk ends.
constexpr size_t fewest_bytes_per_block = 5;
// libjpeg-turbo reads ahead of what it decodes: see EntropyDecoder::library_would_stop_quietly().
constexpr uint32_t bits_left_behind = 16 * 8;
// Bytes of a scan that lanes do not begin to read.
constexpr size_t left_at_end(size_t scan) {
  return std::max<size_t>(512, scan / 64);
}

}  // namespace

SpeculativeRows::SpeculativeRows() : log_(noted_places) {}

bool SpeculativeRows::begin(EncodedView bytes, const BaselineFrame& frame, McuColumns columns, int first_row,
                            int end_row) {
  static const bool supported = lanes_supported();
  if (!supported || frame.restart_interval != 0 || first_row >= end_row) return false;
  const size_t scan = bytes.size() - frame.scan_begin;
  const auto rows = static_cast<size_t>(frame.mcu_rows);
  // The guess is a little generous: what lanes leave costs more than what they do for nothing. What stands at the very
  // end is left to those who can tell what the file's end means.
  const size_t guess = scan * static_cast<size_t>(end_row) / rows;
  const size_t wanted = std::min(guess + guess / 32, scan - std::min(scan, left_at_end(scan)));
  if (wanted < most_lanes * smallest_chunk) return false;
  if (!tables_.lay_out(frame, layout_)) return false;
  const size_t blocks = rows * static_cast<size_t>(frame.mcu_columns) * layout_.blocks;
  if (scan < blocks * fewest_bytes_per_block) return false;
  file_ = reinterpret_cast<const uint8_t*>(bytes.data());
  file_size_ = bytes.size();
  frame_ = &frame;
  columns_ = columns;
  end_row_ = end_row;
  wanted_end_ = frame.scan_begin + wanted;
  bands_ = (wanted + most_lanes * chunk_bytes - 1) / (most_lanes * chunk_bytes);
  raw_ = frame.scan_begin;
  bit_ = 0;
  mcu_ = 0;
  ended_ = false;
  dc_.fill(0);
  runs_.clear();
  band_mcu_ = 0;
  if (coefficients_.empty()) coefficients_.resize((lane_scratch_bytes + most_lanes * lane_bytes) / sizeof(int16_t));
  clean();
  return true;
}

// What the lanes have written is zeroed where it is not needed any more: how much it is, is known only then.
void SpeculativeRows::clean() {
  for (size_t lane = 0; lane < most_lanes; ++lane) {
    const uint32_t begin = first_block(lane);
    if (dirty_end_[lane] > begin) std::memset(coefficients_.data() + begin / 2, 0, dirty_end_[lane] - begin);
    dirty_end_[lane] = 0;
  }
}

// At most `most` bytes of the scan from raw_ on, or up to a marker.
void SpeculativeRows::take_bytes(size_t most) {
  if (bytes_.size() < most + lane_padding) bytes_.resize(most + lane_padding);
  stuffed_.clear();
  uint8_t* const begin = bytes_.data();
  const uint8_t* const end = file_ + file_size_;
  const Unstuffed at = unstuff(file_ + raw_, end, end, begin, begin + most,
                               [&](uint8_t* place) { stuffed_.push_back(static_cast<uint32_t>(place - begin)); });
  bytes_used_ = static_cast<size_t>(at.out - begin);
}

bool SpeculativeRows::feed(size_t lane, const LaneEnd* end, LaneUnit& unit) {
  Lane& own = lanes_[lane];
  if (end == nullptr) {
    const uint32_t begin = lane == 0 ? bit_ : lanes_[lane - 1].end_bit;
    unit = {begin, own.end_bit, lane_blocks, first_block(lane), &layout_};
    return true;
  }
  own.end = *end;
  const uint32_t reached = end->place.block + 2 * block_bytes;  // and what may have been spilt
  dirty_end_[lane] = std::max(dirty_end_[lane], reached);
  if (end->why != LaneEnd::Why::failed || lane == 0) return false;
  // It has not found its way yet. (If it had, that will be noticed.)
  const uint32_t bit = (end->place.bit / 8 + 1) * 8;
  const uint32_t last = first_block(lane) + static_cast<uint32_t>(lane_blocks) * block_bytes;
  if (bit >= own.end_bit || reached >= last) return false;
  own.started_anew = reached;
  unit = {bit, own.end_bit, (last - reached) / block_bytes, reached, &layout_};
  return true;
}

SpeculativeRows::Row SpeculativeRows::read_band() {
  clean();
  runs_.clear();
  run_ = in_run_ = passed_ = 0;
  band_mcu_ = mcu_;
  if (bands_ == 0 || raw_ >= wanted_end_) return Row::ended;
  size_t chunk = (wanted_end_ - raw_) / bands_ / most_lanes;
  --bands_;
  take_bytes(chunk * most_lanes + 4096);  // up to the end of the MCU that the last chunk ends in
  if (bytes_used_ < chunk * most_lanes + lane_padding) {
    // The scan ends long before the file does.
    bands_ = 0;
    chunk = (bytes_used_ - std::min(bytes_used_, left_at_end(bytes_used_))) / most_lanes;
  }
  if (chunk < smallest_chunk) return Row::ended;
  for (size_t lane = 0; lane < most_lanes; ++lane) {
    lanes_[lane] = {static_cast<uint32_t>((lane + 1) * chunk * 8), 0, {}};
  }
  log_.clear();
  decode_lanes(tables_, bytes_.data(), coefficients_.data(), *this, &log_);
  if (!join_lanes()) return Row::not_mine;
  add_predictions();
  return Row::read;
}

bool SpeculativeRows::step(LanePlace& place, size_t lane) {
  if (place.block >= first_block(lane) + static_cast<uint32_t>(lane_blocks + spare_blocks) * block_bytes) return false;
  if (!lane_step(tables_, layout_, bytes_.data(), coefficients_.data(), place)) return false;
  dirty_end_[lane] = std::max(dirty_end_[lane], place.block + 2 * block_bytes);
  return place.bit <= bytes_used_ * 8;
}

void SpeculativeRows::add_run(uint32_t from, uint32_t to) {
  if (to > from) runs_.push_back({from, (to - from) / block_bytes});
}

// From lane to lane along the places where they meet; then to the end of an MCU.
bool SpeculativeRows::join_lanes() {
  size_t lane = 0;
  uint32_t from = first_block(0);
  LanePlace place = lanes_[0].end.place;
  if (lanes_[0].end.why == LaneEnd::Why::failed) return false;
  for (size_t next = 1; next < most_lanes; ++next) {
    // A lane that never comes to a place of the next one's goes on to those of the one after.
    bool met = false;
    for (size_t n = 0; n < log_.size() && !met;) {
      const LanePlace noted = log_.at(n, next);
      if (noted.bit < place.bit) {
        ++n;
      } else if (noted.bit > place.bit) {
        if (!step(place, lane)) return false;
      } else if (noted.next != place.next || noted.turn != place.turn) {
        ++n;
      } else {
        met = true;
        // The block at hand is the next lane's; what it has of it from before the two met comes from here.
        std::memcpy(coefficients_.data() + noted.block / 2, block(place.block), noted.next);
        add_run(from, place.block);
        from = noted.block;
      }
    }
    if (!met) continue;
    const Lane& other = lanes_[next];
    if (other.end.why == LaneEnd::Why::failed || other.started_anew > from) return false;
    lane = next;
    place = other.end.place;
  }
  return go_to_end(place, lane, from);
}

bool SpeculativeRows::go_to_end(LanePlace& place, size_t lane, uint32_t from) {
  size_t before = 0;
  for (const Run& run : runs_) before += run.blocks;
  const auto wanted = static_cast<size_t>(int64_t{end_row_} * frame_->mcu_columns - band_mcu_) * layout_.blocks;
  size_t blocks = before + (place.block - from) / block_bytes;
  while (blocks < wanted && (place.next != 0 || place.turn != 0)) {
    if (!step(place, lane)) return false;
    blocks = before + (place.block - from) / block_bytes;
  }
  add_run(from, place.block);
  mcu_ = band_mcu_ + static_cast<int64_t>(std::min(blocks, wanted) / layout_.blocks);
  // Whoever goes on from here decides himself what the bits at the end mean.
  if (blocks >= wanted) return place.bit + bits_left_behind <= bytes_used_ * 8;
  const auto whole = place.bit / 8;
  raw_ += whole + static_cast<size_t>(std::ranges::lower_bound(stuffed_, whole) - stuffed_.begin());
  bit_ = static_cast<uint8_t>(place.bit % 8);
  return true;
}

void SpeculativeRows::add_predictions() {
  size_t left = static_cast<size_t>(mcu_ - band_mcu_) * layout_.blocks;
  size_t turn = 0;
  for (const Run& run : runs_) {
    const size_t part = std::min(run.blocks, left);
    add_dc_predictions(coefficients_.data() + run.block / 2, part, layout_, turn, dc_);
    left -= part;
  }
}

// Visits the band's blocks of MCUs [first, end), which come after those visited before.
template <class Visit>
void SpeculativeRows::visit_blocks(int64_t first, int64_t end, const Visit& visit) {
  if (first >= end) return;
  size_t skip = static_cast<size_t>(first - band_mcu_) * layout_.blocks - passed_;
  size_t left = static_cast<size_t>(end - first) * layout_.blocks;
  passed_ += skip + left;
  for (; skip >= runs_[run_].blocks - in_run_; ++run_, in_run_ = 0) skip -= runs_[run_].blocks - in_run_;
  in_run_ += skip;
  while (left > 0) {
    if (in_run_ == runs_[run_].blocks) {
      in_run_ = 0;
      ++run_;
    }
    const Run& run = runs_[run_];
    const size_t part = std::min(left, run.blocks - in_run_);
    const int16_t* from = block(run.block) + in_run_ * 64;
    for (size_t n = 0; n < part; ++n, from += 64) visit(from);
    in_run_ += part;
    left -= part;
  }
}

SpeculativeRows::Row SpeculativeRows::read_row(int row, const CoefficientTarget& target) {
  const int64_t row_end = int64_t{row + 1} * frame_->mcu_columns;
  const int64_t wanted_end = row_end - frame_->mcu_columns + columns_.end;
  int64_t next = row_end - frame_->mcu_columns + columns_.first;
  // What earlier bands have of the row.
  kept_.clear();
  while (mcu_ < row_end && !ended_) {
    const int64_t here = std::min(mcu_, wanted_end);
    visit_blocks(next, here, [this](const int16_t* from) { kept_.insert(kept_.end(), from, from + 64); });
    next = std::max(next, here);
    const Row band = read_band();
    if (band == Row::not_mine) return band;
    ended_ = band == Row::ended;
  }
  zigzag_.begin(*frame_, layout_, columns_.count());
  for (size_t i = 0; i < kept_.size(); i += 64) zigzag_.add(kept_.data() + i);
  visit_blocks(next, std::min(mcu_, wanted_end), [this](const int16_t* from) { zigzag_.add(from); });
  zigzag_.write(target);
  return ended_ ? Row::ended : Row::read;
}

bool SpeculativeRows::hand_over(EncodedView bytes, EntropyDecoder& entropy) {
  EntryPoint point{static_cast<uint32_t>(raw_), bit_, {}};
  for (size_t c = 0; c < 3; ++c) {
    point.dc[c] = static_cast<int16_t>(dc_[c]);
    if (point.dc[c] != dc_[c]) return false;
  }
  return raw_ <= UINT32_MAX && entropy.begin(bytes, *frame_) && entropy.enter(point, mcu_);
}

}  // namespace penstock
