#include "runtime/decode/jpeg/speculative_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "runtime/decode/jpeg/lane_step.h"
#include "runtime/decode/jpeg/stuffing.h"

namespace penstock {
namespace {

// With fewer bytes a block, a lane would run out of blocks before its chunk ends.
constexpr size_t kFewestBytesPerBlock = 5;
// libjpeg-turbo reads ahead of what it decodes: see EntropyDecoder::library_would_stop_without_warning().
constexpr uint32_t kBitsLeftBehind = 16 * 8;
// Bytes of a scan that lanes do not begin to read.
constexpr size_t left_at_end(size_t scan) {
  return std::max<size_t>(512, scan / 64);
}

}  // namespace

SpeculativeRows::SpeculativeRows()
    : count_(lane_shape().count),
      noted_places_of_all_(kNotedLookups / lane_shape().lookups_per_fetch),
      log_(noted_places_of_all_, count_) {}

bool SpeculativeRows::begin(EncodedView bytes, const JpegFrame& frame, McuColumns columns, int first_row, int end_row,
                            const Start& from, RestartPointNotes* notes) {
  if (frame.restart_interval != 0 || first_row >= end_row) return false;
  if (from.point.byte < frame.scan_begin || from.point.byte >= bytes.size()) return false;
  const size_t scan = bytes.size() - frame.scan_begin;
  const auto columns_of_all = static_cast<size_t>(frame.mcu_columns);
  const size_t mcus = columns_of_all * static_cast<size_t>(frame.mcu_rows);
  // From where it begins.
  const size_t ahead = bytes.size() - from.point.byte;
  const size_t mcus_ahead = mcus - static_cast<size_t>(from.mcu);
  const size_t mcus_needed = columns_of_all * static_cast<size_t>(end_row) - static_cast<size_t>(from.mcu);
  // The guess is a little generous: what lanes leave costs more than what they do for nothing. What stands at the very
  // end is left to those who can tell what the file's end means.
  const size_t guess = ahead * mcus_needed / mcus_ahead;
  const size_t wanted = std::min(guess + guess / 32, ahead - std::min(ahead, left_at_end(scan)));
  if (wanted < count_ * kSmallestChunk) return false;
  if (!tables_.lay_out(frame, layout_)) return false;
  if (scan < mcus * layout_.blocks * kFewestBytesPerBlock) return false;
  file_ = reinterpret_cast<const uint8_t*>(bytes.data());
  file_size_ = bytes.size();
  frame_ = &frame;
  columns_ = columns;
  end_row_ = end_row;
  wanted_end_ = from.point.byte + wanted;
  bands_ = (wanted + count_ * kChunkBytes - 1) / (count_ * kChunkBytes);
  raw_ = from.point.byte;
  bit_ = from.point.bit;
  mcu_ = from.mcu;
  ended_ = false;
  for (size_t c = 0; c < 3; ++c) dc_[c] = from.point.dc[c];
  notes_ = notes;
  runs_.clear();
  band_mcu_ = mcu_;
  if (coefficients_.empty()) coefficients_.resize((kLaneScratchBytes + count_ * kLaneBytes) / sizeof(int16_t));
  clean();
  return true;
}

// What the lanes have written is zeroed where it is not needed any more: how much it is, is known only then.
void SpeculativeRows::clean() {
  for (size_t lane = 0; lane < count_; ++lane) {
    const uint32_t begin = first_block(lane);
    if (dirty_end_[lane] > begin) std::memset(coefficients_.data() + begin / 2, 0, dirty_end_[lane] - begin);
    dirty_end_[lane] = 0;
  }
}

// At most `most` bytes of the scan from raw_ on, or up to a marker.
void SpeculativeRows::take_bytes(size_t most) {
  if (bytes_.size() < most + kLanePadding) bytes_.resize(most + kLanePadding);
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
    unit = {begin, own.end_bit, kLaneBlocks, first_block(lane)};
    return true;
  }
  own.end = *end;
  own.notes = log_.size();
  const uint32_t reached = end->place.block + 2 * kBlockBytes;  // and what may have been spilt
  dirty_end_[lane] = std::max(dirty_end_[lane], reached);
  if (end->why != LaneEnd::Why::failed || lane == 0) return false;
  // It has not found its way yet. (If it had, that will be noticed.)
  const uint32_t bit = (end->place.bit / 8 + 1) * 8;
  const uint32_t last = first_block(lane) + static_cast<uint32_t>(kLaneBlocks) * kBlockBytes;
  if (bit >= own.end_bit || reached >= last) return false;
  own.started_anew = reached;
  unit = {bit, own.end_bit, (last - reached) / kBlockBytes, reached};
  return true;
}

SpeculativeRows::Row SpeculativeRows::read_band() {
  clean();
  runs_.clear();
  run_ = in_run_ = passed_ = 0;
  band_mcu_ = mcu_;
  band_raw_ = raw_;
  band_bit_ = bit_;
  if (bands_ == 0 || raw_ >= wanted_end_) return Row::ended;
  size_t chunk = (wanted_end_ - raw_) / bands_ / count_;
  --bands_;
  take_bytes(chunk * count_ + 4096);  // up to the end of the MCU that the last chunk ends in
  if (bytes_used_ < chunk * count_ + kLanePadding) {
    // The scan ends long before the file does.
    bands_ = 0;
    chunk = (bytes_used_ - std::min(bytes_used_, left_at_end(bytes_used_))) / count_;
  }
  if (chunk < kSmallestChunk) return Row::ended;
  for (size_t lane = 0; lane < count_; ++lane) {
    lanes_[lane] = {static_cast<uint32_t>((lane + 1) * chunk * 8), 0, {}, 0};
  }
  stepped_.clear();
  log_.clear(notes_ != nullptr && notes_->wanted() != RestartPointNotes::kNone ? noted_places_of_all_ : kNotedPlaces);
  decode_lanes(tables_, layout_, bytes_.data(), coefficients_.data(), *this, &log_);
  if (!join_lanes()) return Row::unsupported;
  add_predictions();
  return Row::read;
}

bool SpeculativeRows::step(LanePlace& place, size_t lane) {
  if (place.block >= first_block(lane) + static_cast<uint32_t>(kLaneBlocks + kSpareBlocks) * kBlockBytes) return false;
  if (!lane_step(tables_, layout_, bytes_.data(), coefficients_.data(), place)) return false;
  dirty_end_[lane] = std::max(dirty_end_[lane], place.block + 2 * kBlockBytes);
  if (notes_ != nullptr && place.next == 0 && place.mcu_block == 0) stepped_.push_back({place.block, place.bit});
  return place.bit <= bytes_used_ * 8;
}

void SpeculativeRows::add_run(uint32_t from, uint32_t to) {
  if (to > from) runs_.push_back({from, (to - from) / kBlockBytes});
}

// From lane to lane along the places where they meet; then to the end of an MCU.
bool SpeculativeRows::join_lanes() {
  size_t lane = 0;
  uint32_t from = first_block(0);
  LanePlace place = lanes_[0].end.place;
  if (lanes_[0].end.why == LaneEnd::Why::failed) return false;
  for (size_t next = 1; next < count_; ++next) {
    // A lane that never comes to a place of the next one's goes on to those of the one after.
    bool met = false;
    for (size_t n = 0; n < log_.size() && !met;) {
      const LanePlace noted = log_.at(n, next);
      if (noted.bit < place.bit) {
        ++n;
      } else if (noted.bit > place.bit) {
        if (!step(place, lane)) return false;
      } else if (noted.next != place.next || noted.mcu_block != place.mcu_block) {
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
  size_t blocks = before + (place.block - from) / kBlockBytes;
  while (blocks < wanted && (place.next != 0 || place.mcu_block != 0)) {
    if (!step(place, lane)) return false;
    blocks = before + (place.block - from) / kBlockBytes;
  }
  add_run(from, place.block);
  mcu_ = band_mcu_ + static_cast<int64_t>(std::min(blocks, wanted) / layout_.blocks);
  // The code that goes on from here decides what the bits at the end mean.
  if (blocks >= wanted) return place.bit + kBitsLeftBehind <= bytes_used_ * 8;
  const auto whole = place.bit / 8;
  raw_ += whole + static_cast<size_t>(std::ranges::lower_bound(stuffed_, whole) - stuffed_.begin());
  bit_ = static_cast<uint8_t>(place.bit % 8);
  return true;
}

// And notes the restart points on the way: the predictions before an MCU are part of its point.
void SpeculativeRows::add_predictions() {
  const size_t all = static_cast<size_t>(mcu_ - band_mcu_) * layout_.blocks;
  size_t before = 0;  // blocks of the band before the run
  size_t mcu_block = 0;
  stuffed_before_ = 0;
  note_lane_ = count_;
  for (size_t r = 0; r < runs_.size(); ++r) {
    const size_t part = std::min(runs_[r].blocks, all - before);
    int16_t* const blocks = coefficients_.data() + runs_[r].block / 2;
    size_t done = 0;
    while (notes_ != nullptr && notes_->wanted() < mcu_) {
      const size_t entry = static_cast<size_t>(notes_->wanted() - band_mcu_) * layout_.blocks - before;
      if (entry >= part) break;
      add_dc_predictions(blocks + done * 64, entry - done, layout_, mcu_block, dc_);
      done = entry;
      RestartPoint point;
      if (find_restart_point(r, entry, point)) {
        notes_->add(point);
      } else {
        notes_->stop();
      }
    }
    add_dc_predictions(blocks + done * 64, part - done, layout_, mcu_block, dc_);
    before += part;
  }
}

// The point before the block that has so many of its run before it, which begins an MCU; later ones from call to call.
bool SpeculativeRows::find_restart_point(size_t run, size_t blocks, RestartPoint& point) {
  uint32_t bit = band_bit_;
  if (run > 0 || blocks > 0) {
    if (blocks == 0) blocks = runs_[--run].blocks;  // what the lane noted of its run's first block may be from before
    const size_t lane = (runs_[run].block - first_block(0)) / kLaneBytes;
    const uint32_t wanted = runs_[run].block + static_cast<uint32_t>(blocks * kBlockBytes);
    const LanePlace& end = lanes_[lane].end.place;
    if (wanted > end.block) {
      const auto stepped = std::ranges::lower_bound(stepped_, wanted, {}, &Stepped::block);
      if (stepped == stepped_.end() || stepped->block != wanted) return false;
      bit = stepped->bit;
    } else {
      if (lanes_[lane].notes == 0) return false;
      LanePlace place = log_.at(last_note_before(lane, wanted), lane);
      for (int steps = 0; place.block != wanted; ++steps) {
        if (steps == kMostStepsToRestartPoint) return false;
        if (!lane_step<false>(tables_, layout_, bytes_.data(), nullptr, place)) return false;
      }
      if (place.next != 0 || place.mcu_block != 0) return false;
      bit = place.bit;
    }
  }
  const uint32_t byte = bit / 8;
  while (stuffed_before_ < stuffed_.size() && stuffed_[stuffed_before_] < byte) ++stuffed_before_;
  const size_t raw = band_raw_ + byte + stuffed_before_;
  point.byte = static_cast<uint32_t>(raw);
  point.bit = static_cast<uint8_t>(bit % 8);
  for (size_t c = 0; c < 3; ++c) {
    point.dc[c] = static_cast<int16_t>(dc_[c]);
    if (point.dc[c] != dc_[c]) return false;
  }
  return raw <= UINT32_MAX;
}

// The last of the lane's notes that is not behind the block's beginning. Blocks near each other take about as many
// notes, so it is looked for where the rate of the last run of MCUs says, then where that of this one does, and in the
// end one by one.
size_t SpeculativeRows::last_note_before(size_t lane, uint32_t block) {
  const size_t last = lanes_[lane].notes - 1;
  if (lane != note_lane_) {
    note_lane_ = lane;
    note_ = 0;
    const uint32_t blocks = (lanes_[lane].end.place.block - first_block(lane)) / kBlockBytes;
    notes_per_block_ = static_cast<float>(last) / static_cast<float>(std::max<uint32_t>(blocks, 1));
  }
  const auto blocks_to_go = [&](size_t n) {
    return static_cast<float>(static_cast<int32_t>(block - log_.at(n, lane).block)) * (1.0F / kBlockBytes) - 0.5F;
  };
  const float wanted = blocks_to_go(note_);
  float blocks = wanted;
  size_t found = note_;
  for (int guess = 0; guess < 4 && std::abs(blocks) >= 1; ++guess) {
    const auto step = static_cast<int32_t>(blocks * notes_per_block_);
    found = static_cast<size_t>(std::clamp(static_cast<int32_t>(found) + step, 0, static_cast<int32_t>(last)));
    blocks = blocks_to_go(found);
    if (found > note_ && wanted - blocks >= 1) {
      notes_per_block_ = static_cast<float>(found - note_) / (wanted - blocks);
    }
  }
  const auto is_behind = [&](size_t at) {
    const LanePlace place = log_.at(at, lane);
    return place.block > block || (place.block == block && place.next > 0);
  };
  while (found > 0 && is_behind(found)) --found;
  while (found < last && !is_behind(found + 1)) ++found;
  note_ = found;
  return found;
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
    if (band == Row::unsupported) return band;
    ended_ = band == Row::ended;
  }
  zigzag_.begin(*frame_, layout_, columns_.count());
  for (size_t i = 0; i < kept_.size(); i += 64) zigzag_.add(kept_.data() + i);
  visit_blocks(next, std::min(mcu_, wanted_end), [this](const int16_t* from) { zigzag_.add(from); });
  zigzag_.write(target);
  return ended_ ? Row::ended : Row::read;
}

bool SpeculativeRows::hand_over(EncodedView bytes, EntropyDecoder& entropy) {
  RestartPoint point{static_cast<uint32_t>(raw_), bit_, {}};
  for (size_t c = 0; c < 3; ++c) {
    point.dc[c] = static_cast<int16_t>(dc_[c]);
    if (point.dc[c] != dc_[c]) return false;
  }
  return raw_ <= UINT32_MAX && entropy.begin(bytes, *frame_) && entropy.enter(point, mcu_);
}

}  // namespace penstock
