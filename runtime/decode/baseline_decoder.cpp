#include "runtime/decode/baseline_decoder.h"

#include <algorithm>

#include "runtime/decode/coefficient_tiles.h"
#include "runtime/decode/jpeg_kernels.h"

namespace penstock {
namespace {

#if defined(__x86_64__) || defined(__i386__) || defined(_M_X64)
constexpr bool same_arithmetic_as_library = true;
#else
constexpr bool same_arithmetic_as_library = false;
#endif

size_t rounded_up(size_t n, size_t to) {
  return (n + to - 1) / to * to;
}

}  // namespace

bool BaselineDecoder::decode(EncodedView bytes, const ImageHeader& header, const Box& box, const SideIndex* index,
                             PixelBuffer& storage, PixelView& pixels) {
  if (!same_arithmetic_as_library || !read_baseline_frame(bytes, frame_)) return false;
  if (frame_.width != header.width || frame_.height != header.height) return false;
  prepare(box);
  // Rows wide enough for whole vectors of pixels.
  storage.resize(static_cast<int>(rounded_up(static_cast<size_t>(box.width), 32)), box.height);
  if (!decode_rows(bytes, box, index, true, storage) &&
      !(rows_.without_lanes_may_help() && decode_rows(bytes, box, index, false, storage))) {
    return false;
  }
  pixels = {storage.row(0), box.width, box.height, storage.row_bytes()};
  return true;
}

bool BaselineDecoder::decode_rows(EncodedView bytes, const Box& box, const SideIndex* index, bool lanes,
                                  PixelBuffer& storage) {
  const int first_row = first_needed_row(box);
  const int end_row = rows_read_by_library(box);
  if (!rows_.begin(bytes, frame_, index, {first_mcu_, end_mcu_}, first_row, end_row, lanes)) return false;
  const int mcu_height = 8 * frame_.max_v;
  const int end = box.y + box.height;
  int y = box.y;
  for (int r = first_row; r < end_row; ++r) {
    if (!read_samples(r, box)) return false;
    // Interpolation between rows of chroma needs the next MCUs for the last two rows of these.
    int ready = (r + 1) * mcu_height;
    if (interpolates_rows() && r + 1 < frame_.mcu_rows) ready -= 2;
    for (; y < std::min(ready, end); ++y) write_row(y, box, storage.row(y - box.y));
  }
  return rows_.finish();
}

// libjpeg decodes MCU rows as it needs them, and one more before the last two rows of pixels where it interpolates
// between rows of chroma.
int BaselineDecoder::rows_read_by_library(const Box& box) const {
  const int last = box.y + box.height - 1;
  int rows = (last + (interpolates_rows() ? 2 : 0)) / (8 * frame_.max_v) + 1;
  rows = (rows + frame_.row_group - 1) / frame_.row_group * frame_.row_group;
  return std::min(rows, frame_.mcu_rows);
}

// From the row of MCUs that holds the box's first row, or the row of chroma above it, which that is made of too.
int BaselineDecoder::first_needed_row(const Box& box) const {
  return std::max(0, box.y - (interpolates_rows() ? 2 : 0)) / (8 * frame_.max_v);
}

void BaselineDecoder::prepare(const Box& box) {
  const int last = box.x + box.width - 1;
  if (frame_.max_h == 2) {
    // One sample of chroma on each side.
    first_mcu_ = std::max(0, box.x / 2 - 1) / 8;
    end_mcu_ = std::min(frame_.component[1].width - 1, last / 2 + 1) / 8 + 1;
  } else {
    first_mcu_ = box.x / 8;
    end_mcu_ = last / 8 + 1;
  }
  size_t coefficients = 0;
  for (int c = 0; c < frame_.components; ++c) {
    const BaselineComponent& component = frame_.component[static_cast<size_t>(c)];
    Plane& plane = planes_[static_cast<size_t>(c)];
    const size_t tiles = tiles_of(static_cast<size_t>((end_mcu_ - first_mcu_) * component.h));
    plane.stride = rounded_up(tiles * 32 + 2 * jpeg_row_padding, 64);
    plane.rows = 16 * component.v;
    const size_t need = static_cast<size_t>(plane.rows) * plane.stride + 2 * Plane::margin + 2 * jpeg_row_padding;
    if (plane.memory.size() < need) plane.memory.resize(need);
    coefficients += tiles * static_cast<size_t>(component.v) * tile_coefficients;
  }
  if (coefficients_.size() < coefficients) coefficients_.resize(coefficients);
  const size_t row = rounded_up(static_cast<size_t>(box.width) + 2, 64) + 2 * jpeg_row_padding;
  for (auto& chroma : chroma_) {
    if (chroma.size() < row) chroma.resize(row);
  }
}

bool BaselineDecoder::read_samples(int mcu_row, const Box& box) {
  CoefficientTarget target;
  target.first_mcu = first_mcu_;
  target.end_mcu = end_mcu_;
  size_t begin = 0;
  // A row of MCUs that only chroma is interpolated from needs no luma.
  const int top = mcu_row * 8 * frame_.max_v;
  const bool luma = top < box.y + box.height && top + 8 * frame_.max_v > box.y;
  for (int c = 0; c < frame_.components; ++c) {
    const auto i = static_cast<size_t>(c);
    const BaselineComponent& component = frame_.component[i];
    if (c == 0 && !luma) continue;
    target.tiles[i] = coefficients_.data() + begin;
    target.row_stride[i] = tiles_of(static_cast<size_t>((end_mcu_ - first_mcu_) * component.h)) * tile_coefficients;
    begin += target.row_stride[i] * static_cast<size_t>(component.v);
  }
  if (!rows_.read_row(mcu_row, target)) return false;
  for (int c = 0; c < frame_.components; ++c) {
    const auto i = static_cast<size_t>(c);
    if (target.tiles[i] == nullptr) continue;
    const BaselineComponent& component = frame_.component[i];
    for (int v = 0; v < component.v; ++v) {
      idct_tiles(target.tiles[i] + static_cast<size_t>(v) * target.row_stride[i],
                 target.row_stride[i] / tile_coefficients, component.quant.data(),
                 planes_[i].row((mcu_row * component.v + v) * 8), planes_[i].stride);
    }
  }
  if (frame_.max_h == 2) repeat_borders(mcu_row);
  return true;
}

// Interpolation along rows takes the image's first and last sample as their own neighbours.
void BaselineDecoder::repeat_borders(int mcu_row) {
  for (size_t c = 1; c < 3; ++c) {
    const int end = frame_.component[c].width - 8 * first_mcu_;
    for (int y = 8 * mcu_row; y < 8 * mcu_row + 8; ++y) {
      uint8_t* const row = planes_[c].row(y);
      if (first_mcu_ == 0) row[-1] = row[0];
      if (end <= 8 * (end_mcu_ - first_mcu_)) row[end] = row[end - 1];
    }
  }
}

void BaselineDecoder::write_row(int y, const Box& box, uint8_t* rgb) {
  const auto width = static_cast<size_t>(box.width);
  const uint8_t* const luma = planes_[0].row(y) + (box.x - first_mcu_ * 8 * frame_.max_h);
  if (frame_.components == 1) {
    grey_row_to_rgb(luma, width, rgb);
    return;
  }
  const uint8_t* row[2];
  for (size_t c = 0; c < 2; ++c) {
    Plane& plane = planes_[c + 1];
    const int last = frame_.component[c + 1].height - 1;
    const int left = box.x / frame_.max_h;
    const auto count = static_cast<size_t>((box.x + box.width - 1) / frame_.max_h - left + 1);
    const int column = left - 8 * first_mcu_;
    const int near_y = y / frame_.max_v;
    const int far_y = std::clamp((y & 1) == 0 ? near_y - 1 : near_y + 1, 0, last);
    const uint8_t* const near = plane.row(near_y) + column;
    uint8_t* const out = chroma_[c].data();
    row[c] = out;
    if (frame_.max_h == 2) {
      if (frame_.max_v == 2) {
        upsample_2x2(near, plane.row(far_y) + column, count, out);
      } else {
        upsample_2x1(near, count, out);
      }
      row[c] += box.x & 1;
    } else if (frame_.max_v == 2) {
      upsample_1x2(near, plane.row(far_y) + column, (y & 1) == 0 ? 1 : 2, count, out);
    } else {
      row[c] = near;
    }
  }
  ycc_row_to_rgb(luma, row[0], row[1], width, rgb);
}

}  // namespace penstock
