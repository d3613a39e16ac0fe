#include "runtime/decode/jpeg/progressive_rows.h"

#include <algorithm>

namespace penstock {
namespace {

// What is left of a segment's last byte are bits that fill it.
bool ends_here(const ProgressiveStream& stream) {
  const std::ptrdiff_t left = stream.left();
  return left >= 0 && left < 8;
}

}  // namespace

bool ProgressiveRows::read_headers(EncodedView bytes, int max_scans, JpegFrame& frame) {
  return scans_.read(bytes, max_scans, frame) || done(false);
}

// Large files' memory goes as soon as they are done with.
bool ProgressiveRows::done(bool supported) {
  scans_.trim();
  return supported;
}

bool ProgressiveRows::begin(const JpegFrame& frame) {
  frame_ = &frame;
  next_row_ = 0;
  states_.clear();
  size_t tables = 0;
  std::array<bool, 3> refined{};
  for (const ProgressiveScan& scan : scans_.list()) {
    State& state = states_.emplace_back();
    enter_segment(scan, state, 0);
    refined[scan.component[0]] |= scan.refined;
    const bool dc = scan.first == 0;
    if (dc && scan.high != 0) continue;  // plain bits
    for (size_t i = 0; i < static_cast<size_t>(scan.components); ++i) {
      if (tables == tables_.size()) tables_.push_back(std::make_unique<ProgressiveTable>());
      const auto kind = dc ? HuffmanTable::Kind::dc : HuffmanTable::Kind::ac;
      // Components of a scan share tables more often than not.
      size_t same = 0;
      while (same < i && scan.tables[same].bytes != scan.tables[i].bytes) ++same;
      if (same < i) {
        state.tables[i] = state.tables[same];
        continue;
      }
      ProgressiveTable& table = *tables_[tables++];
      if (!table.build(scan.tables[i], kind, scan.low, scan.high != 0)) return done(false);
      state.tables[i] = &table;
    }
  }
  size_t blocks = 0;
  std::array<size_t, 3> begin{};
  for (size_t c = 0; c < static_cast<size_t>(frame.components); ++c) {
    const JpegComponent& component = frame.component[c];
    begin[c] = blocks;
    if (refined[c]) blocks += static_cast<size_t>(component.v) * static_cast<size_t>(blocks_across(component));
  }
  masks_.resize(blocks);
  for (size_t c = 0; c < 3; ++c) masks_of_[c] = refined[c] ? masks_.data() + begin[c] : nullptr;
  return true;
}

bool ProgressiveRows::read_row(int row, const CoefficientTarget& target) {
  while (next_row_ < row) {
    if (!read_next_row(nullptr)) return done(false);
  }
  return read_next_row(&target) || done(false);
}

bool ProgressiveRows::finish() {
  while (next_row_ < frame_->mcu_rows) {
    if (!read_next_row(nullptr)) return done(false);
  }
  for (size_t i = 0; i < states_.size(); ++i) {
    const State& state = states_[i];
    if (!ends_here(state.stream) || state.segment + 1 != scans_.list()[i].segments) return done(false);
  }
  return done(true);
}

bool ProgressiveRows::read_next_row(const CoefficientTarget* target) {
  std::fill(masks_.begin(), masks_.end(), 0);
  for (size_t i = 0; i < states_.size(); ++i) {
    const ProgressiveScan& scan = scans_.list()[i];
    if (!(scan.first == 0 ? read_dc(scan, states_[i], target) : read_ac(scan, states_[i], target))) return false;
  }
  ++next_row_;
  return true;
}

void ProgressiveRows::enter_segment(const ProgressiveScan& scan, State& state, size_t segment) {
  const ProgressiveScans::Bits bits = scans_.segment(scan.segment + segment);
  state.stream = {.next = bits.begin, .end = bits.end};
  state.prediction.fill(0);
  state.segment = segment;
  state.until_restart = static_cast<size_t>(scan.restart_interval);
}

// `count` MCUs of a row of the scan, in the pieces that restart markers make: read(begin, end).
template <class Read>
bool ProgressiveRows::by_segments(const ProgressiveScan& scan, State& state, size_t count, const Read& read) {
  if (scan.restart_interval == 0) return read(size_t{0}, count) && state.stream.left() >= 0;
  for (size_t at = 0; at < count;) {
    if (state.until_restart == 0) {
      if (!ends_here(state.stream) || state.segment + 1 >= scan.segments) return false;
      enter_segment(scan, state, state.segment + 1);
    }
    const size_t n = std::min(count - at, state.until_restart);
    if (!read(at, at + n) || state.stream.left() < 0) return false;
    at += n;
    state.until_restart -= n;
  }
  return true;
}

// How many rows of blocks a scan of the component alone has in the row of MCUs.
int ProgressiveRows::blocks_down_in_row(const JpegComponent& component) const {
  return std::min(component.v, blocks_down(component) - next_row_ * component.v);
}

bool ProgressiveRows::read_dc(const ProgressiveScan& scan, State& state, const CoefficientTarget* target) {
  std::array<ProgressiveDcBlock, 6> blocks;
  size_t count = 0;
  const auto add = [&](size_t i, int down, int across, int step) {
    const size_t c = scan.component[i];
    ProgressiveDcBlock& block = blocks[count++];
    block = {};
    block.table = state.tables[i];
    block.prediction = &state.prediction[i];
    block.step = static_cast<size_t>(step);
    block.across = static_cast<size_t>(across);
    if (target == nullptr || target->tiles[c] == nullptr) return;
    const int h = frame_->component[c].h;
    block.tiles = target->tiles[c] + static_cast<size_t>(down) * target->row_stride[c];
    block.first_wanted = static_cast<size_t>(target->first_mcu * h);
    block.end_wanted = static_cast<size_t>(target->end_mcu * h);
  };
  const auto read = [&](size_t begin, size_t end) {
    const auto function = scan.high == 0 ? read_dc_first : read_dc_refinement;
    return function(state.stream, blocks.data(), count, scan.low, begin, end);
  };
  if (scan.components > 1) {
    for (size_t i = 0; i < static_cast<size_t>(scan.components); ++i) {
      const JpegComponent& component = frame_->component[scan.component[i]];
      for (int down = 0; down < component.v; ++down) {
        for (int across = 0; across < component.h; ++across) add(i, down, across, component.h);
      }
    }
    return by_segments(scan, state, static_cast<size_t>(frame_->mcu_columns), read);
  }
  const JpegComponent& component = frame_->component[scan.component[0]];
  for (int down = 0; down < blocks_down_in_row(component); ++down) {
    count = 0;
    add(0, down, 0, 1);
    if (!by_segments(scan, state, static_cast<size_t>(blocks_across(component)), read)) return false;
  }
  return true;
}

bool ProgressiveRows::read_ac(const ProgressiveScan& scan, State& state, const CoefficientTarget* target) {
  const size_t c = scan.component[0];
  const JpegComponent& component = frame_->component[c];
  const auto across = static_cast<size_t>(blocks_across(component));
  const ProgressiveBand band{state.tables[0], static_cast<unsigned>(scan.first), static_cast<unsigned>(scan.last),
                             scan.low, scan.refined};
  for (int down = 0; down < blocks_down_in_row(component); ++down) {
    const auto row = static_cast<size_t>(down);
    ProgressiveMcuRun blocks;
    if (target != nullptr && target->tiles[c] != nullptr) {
      blocks.tiles = target->tiles[c] + row * target->row_stride[c];
      blocks.first_wanted = static_cast<size_t>(target->first_mcu * component.h);
      blocks.end_wanted = static_cast<size_t>(target->end_mcu * component.h);
    }
    if (masks_of_[c] != nullptr) blocks.masks = masks_of_[c] + row * across;
    const bool good = by_segments(scan, state, across, [&](size_t begin, size_t end) {
      blocks.begin = begin;
      blocks.end = end;
      return scan.high == 0 ? read_ac_first(state.stream, band, blocks)
                            : read_ac_refinement(state.stream, band, blocks);
    });
    if (!good) return false;
  }
  return true;
}

}  // namespace penstock
