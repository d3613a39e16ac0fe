#include "runtime/gpu/coefficient_reader.h"

namespace penstock {

bool CoefficientReader::open(EncodedView bytes, const ImageHeader& header, const Box& box, int max_scans) {
  if (header.format != ImageFormat::jpeg || header.orientation > 1) return false;
  if (!rows_.read_frame(bytes, header, max_scans, frame_)) return false;
  bytes_ = bytes;
  window_ = mcu_window(frame_, box);
  coefficients_ = 0;
  for (size_t c = 0; c < static_cast<size_t>(frame_.components); ++c) {
    const JpegComponent& component = frame_.component[c];
    const int first = c == 0 ? window_.first_luma_row : window_.first_row;
    const int end = c == 0 ? window_.end_luma_row : window_.end_row;
    Blocks& blocks = blocks_[c];
    blocks.at = coefficients_;
    blocks.row_stride = tiles_across(component, window_.columns.count()) * kTileCoefficients;
    blocks.first_column = window_.columns.first * component.h;
    blocks.first_row = first * component.v;
    blocks.columns = (window_.columns.end - window_.columns.first) * component.h;
    blocks.rows = (end - first) * component.v;
    coefficients_ += blocks.row_stride * static_cast<size_t>(blocks.rows);
  }
  return true;
}

bool CoefficientReader::read(const SideIndex* index, int16_t* to) {
  return rows_.with_lanes_or_without([&](bool lanes) { return read_rows(index, lanes, to); });
}

bool CoefficientReader::read_rows(const SideIndex* index, bool lanes, int16_t* to) {
  if (!rows_.begin(bytes_, frame_, index, window_, lanes)) return false;
  for (int row = window_.first_row; row < window_.end_row; ++row) {
    CoefficientTarget target;
    target.first_mcu = window_.columns.first;
    target.end_mcu = window_.columns.end;
    const bool luma = row >= window_.first_luma_row && row < window_.end_luma_row;
    for (size_t c = luma ? 0 : 1; c < static_cast<size_t>(frame_.components); ++c) {
      const Blocks& blocks = blocks_[c];
      target.row_stride[c] = blocks.row_stride;
      target.tiles[c] =
          to + blocks.at + static_cast<size_t>(row * frame_.component[c].v - blocks.first_row) * blocks.row_stride;
    }
    if (!rows_.read_row(row, target)) return false;
  }
  return rows_.finish();
}

}  // namespace penstock
