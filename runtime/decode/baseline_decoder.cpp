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
  window_ = mcu_window(frame_, box);
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
  if (!rows_.begin(bytes, frame_, index, window_, lanes)) return false;
  const int mcu_height = 8 * frame_.max_v;
  const int end = box.y + box.height;
  int y = box.y;
  for (int r = window_.first_row; r < window_.end_row; ++r) {
    if (!read_samples(r)) return false;
    // Interpolation between rows of chroma needs the next MCUs for the last two rows of these.
    int ready = (r + 1) * mcu_height;
    if (interpolates_rows(frame_) && r + 1 < frame_.mcu_rows) ready -= 2;
    for (; y < std::min(ready, end); ++y) write_row(y, box, storage.row(y - box.y));
  }
  return rows_.finish();
}

void BaselineDecoder::prepare(const Box& box) {
  for (int c = 0; c < frame_.components; ++c) {
    const BaselineComponent& component = frame_.component[static_cast<size_t>(c)];
    Plane& plane = planes_[static_cast<size_t>(c)];
    const size_t tiles = tiles_of(static_cast<size_t>((window_.columns.end - window_.columns.first) * component.h));
    plane.stride = rounded_up(tiles * 32 + 2 * jpeg_row_padding, 64);
    plane.rows = 16 * component.v;
    const size_t need = static_cast<size_t>(plane.rows) * plane.stride + 2 * Plane::margin + 2 * jpeg_row_padding;
    if (plane.memory.size() < need) plane.memory.resize(need);
  }
  const size_t coefficients = window_.most_coefficients(frame_);
  if (coefficients_.size() < coefficients) coefficients_.resize(coefficients);
  const size_t row = rounded_up(static_cast<size_t>(box.width) + 2, 64) + 2 * jpeg_row_padding;
  for (auto& chroma : chroma_) {
    if (chroma.size() < row) chroma.resize(row);
  }
}

bool BaselineDecoder::read_samples(int mcu_row) {
  const CoefficientTarget target = window_.target(frame_, mcu_row, coefficients_.data());
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
    const int end = frame_.component[c].width - 8 * window_.columns.first;
    for (int y = 8 * mcu_row; y < 8 * mcu_row + 8; ++y) {
      uint8_t* const row = planes_[c].row(y);
      if (window_.columns.first == 0) row[-1] = row[0];
      if (end <= 8 * (window_.columns.end - window_.columns.first)) row[end] = row[end - 1];
    }
  }
}

void BaselineDecoder::write_row(int y, const Box& box, uint8_t* rgb) {
  const auto width = static_cast<size_t>(box.width);
  const uint8_t* const luma = planes_[0].row(y) + (box.x - window_.columns.first * 8 * frame_.max_h);
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
    const int column = left - 8 * window_.columns.first;
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
