#include "runtime/decode/jpeg/own_jpeg_decoder.h"

#include <algorithm>
#include <cstring>

#include "runtime/decode/jpeg/coefficient_tiles.h"
#include "runtime/decode/jpeg/jpeg_kernels.h"

namespace penstock {
namespace {

size_t rounded_up(size_t n, size_t to) {
  return (n + to - 1) / to * to;
}

}  // namespace

bool OwnJpegDecoder::decode(EncodedView bytes, const ImageHeader& header, const Box& box,
                            const DecodeOptions& decode_options, PixelBuffer& storage, PixelView& pixels) {
  if (!rows_.read_frame(bytes, header, max_scans_, frame_)) return false;
  grid_ = sample_grid(frame_, decode_options.reduction);
  // Repeated, not interpolated, and needs no rows around it; as with narrow images of full size (jpeg_frame.h).
  if (grid_.doubles_columns && grid_.interpolates && grid_.component_width[1] <= 2) {
    rows_.forget();
    return false;
  }
  window_ = mcu_window(frame_, grid_, box);
  if (decode_options.judges()) reach_judged_rows(decode_options);
  prepare(box);
  // Rows wide enough for whole vectors of pixels.
  if (decode_options.rows == nullptr) {
    storage.resize(static_cast<int>(rounded_up(static_cast<size_t>(box.width), 32)), box.height);
  }
  RestartPointNotes* const notes =
      decode_options.learned != nullptr && begin_notes(bytes, decode_options.index) ? &notes_ : nullptr;
  const bool supported = rows_.with_lanes_or_without([&](bool lanes) {
    if (lanes) return decode_rows(bytes, box, decode_options, true, notes, storage);
    // Nothing is learned of a file that the lanes refuse: they would refuse it with an index, too.
    notes_.begin(0, 0, 0);
    return decode_rows(bytes, box, decode_options, false, nullptr, storage);
  });
  if (!supported) return false;
  pixels = {};
  if (decode_options.rows == nullptr) pixels = {storage.row(0), box.width, box.height, storage.row_bytes()};
  return true;
}

// To the last row that the same pixels need at full size; what an index has of them gives no warnings.
void OwnJpegDecoder::reach_judged_rows(const DecodeOptions& decode_options) {
  const int end = mcu_window(frame_, decode_options.judged).end_row;
  const bool no_warnings = decode_options.index != nullptr && decode_options.index->fits(frame_) &&
                           decode_options.index->mcus_without_warning(frame_) >= int64_t{end} * frame_.mcu_columns;
  if (!no_warnings) window_.end_row = std::max(window_.end_row, end);
}

// False: there is nothing to be learned.
bool OwnJpegDecoder::begin_notes(EncodedView bytes, const SideIndex* index) {
  notes_.begin(0, 0, 0);
  if (frame_.progressive || frame_.restart_interval != 0 || bytes.size() > UINT32_MAX ||
      (index != nullptr && !index->fits(frame_))) {
    return false;
  }
  const int64_t mcus = int64_t{frame_.mcu_columns} * frame_.mcu_rows;
  interval_ = index != nullptr        ? index->interval()
              : learned_interval_ > 0 ? learned_interval_
                                      : learned_interval(frame_, bytes.size());
  notes_.begin(interval_, index != nullptr ? static_cast<int64_t>(index->size()) * interval_ : 0, mcus);
  return notes_.wanted() != RestartPointNotes::kNone;
}

SideIndex OwnJpegDecoder::learned(const SideIndex* index) const {
  if (notes_.points().empty()) return {};
  SideIndex more = index != nullptr ? *index : SideIndex(interval_, frame_.components, true);
  const size_t before = more.size();
  more.reserve(before + notes_.points().size());
  for (const RestartPoint& point : notes_.points()) {
    if (!more.add(point)) break;
  }
  // A single point, at the scan's beginning, says nothing.
  return more.size() > std::max<size_t>(before, 1) ? more : SideIndex{};
}

bool OwnJpegDecoder::decode_rows(EncodedView bytes, const Box& box, const DecodeOptions& decode_options, bool lanes,
                                 RestartPointNotes* notes, PixelBuffer& storage) {
  if (!rows_.begin(bytes, frame_, decode_options.index, window_, lanes, notes)) return false;
  const auto width = static_cast<size_t>(box.width);
  const int end = box.y + box.height;
  int y = box.y;
  for (int r = window_.first_row; r < window_.end_row; ++r) {
    if (!read_row(r, y < end)) return false;
    // Interpolation between rows of chroma needs the next MCUs for the last two rows of these.
    int ready = (r + 1) * grid_.mcu_height;
    if (grid_.interpolates_rows() && r + 1 < frame_.mcu_rows) ready -= 2;
    for (; y < std::min(ready, end); ++y) {
      const SampleRow from = sample_row(y, box);
      if (decode_options.rows != nullptr) {
        write_planes(from, width, decode_options.rows->row(y - box.y));
      } else {
        write_rgb(from, width, storage.row(y - box.y));
      }
    }
  }
  return rows_.finish();
}

void OwnJpegDecoder::prepare(const Box& box) {
  for (int c = 0; c < frame_.components; ++c) {
    const JpegComponent& component = frame_.component[static_cast<size_t>(c)];
    Plane& plane = planes_[static_cast<size_t>(c)];
    const size_t tiles = tiles_of(static_cast<size_t>((window_.columns.end - window_.columns.first) * component.h));
    const int block = grid_.block[static_cast<size_t>(c)];
    plane.stride = rounded_up(tiles * kBlocksPerTile * static_cast<size_t>(block) + 2 * kJpegRowPadding, 64);
    plane.rows = 2 * block * component.v;
    const size_t need = static_cast<size_t>(plane.rows) * plane.stride + 2 * Plane::margin + 2 * kJpegRowPadding;
    if (plane.memory.size() < need) plane.memory.resize(need);
  }
  const size_t coefficients = window_.most_coefficients(frame_);
  if (coefficients_.size() < coefficients) coefficients_.resize(coefficients);
  const size_t row = rounded_up(static_cast<size_t>(box.width) + 2, 64) + 2 * kJpegRowPadding;
  for (auto& chroma : chroma_) {
    if (chroma.size() < row) chroma.resize(row);
  }
}

// `wanted`: its samples are; else it is read for the status alone.
bool OwnJpegDecoder::read_row(int mcu_row, bool wanted) {
  const CoefficientTarget target = window_.target(frame_, mcu_row, coefficients_.data());
  if (!rows_.read_row(mcu_row, target)) return false;
  if (!wanted) return true;
  for (int c = 0; c < frame_.components; ++c) {
    const auto i = static_cast<size_t>(c);
    if (target.tiles[i] == nullptr) continue;
    const JpegComponent& component = frame_.component[i];
    for (int v = 0; v < component.v; ++v) {
      const int16_t* const tiles = target.tiles[i] + static_cast<size_t>(v) * target.row_stride[i];
      const size_t count = target.row_stride[i] / kTileCoefficients;
      uint8_t* const to = planes_[i].row((mcu_row * component.v + v) * grid_.block[i]);
      switch (grid_.block[i]) {
        case 8: idct_tiles(tiles, count, component.quant.data(), to, planes_[i].stride); break;
        case 4: idct_tiles_4x4(tiles, count, component.quant.data(), to, planes_[i].stride); break;
        case 2: idct_tiles_2x2(tiles, count, component.quant.data(), to, planes_[i].stride); break;
        default: idct_tiles_1x1(tiles, count, component.quant.data(), to);
      }
    }
  }
  if (grid_.doubles_columns && grid_.interpolates) repeat_borders(mcu_row);
  return true;
}

// Interpolation along rows takes the image's first and last sample as their own neighbours.
void OwnJpegDecoder::repeat_borders(int mcu_row) {
  for (size_t c = 1; c < 3; ++c) {
    const int block = grid_.block[c];
    const int end = grid_.component_width[c] - block * window_.columns.first;
    for (int y = block * mcu_row; y < block * mcu_row + block; ++y) {
      uint8_t* const row = planes_[c].row(y);
      if (window_.columns.first == 0) row[-1] = row[0];
      if (end <= block * (window_.columns.end - window_.columns.first)) row[end] = row[end - 1];
    }
  }
}

void OwnJpegDecoder::write_rgb(const SampleRow& from, size_t width, uint8_t* rgb) const {
  if (frame_.components == 1) {
    grey_row_to_rgb(from.luma, width, rgb);
  } else {
    ycc_row_to_rgb(from.luma, from.chroma[0], from.chroma[1], width, rgb);
  }
}

void OwnJpegDecoder::write_planes(const SampleRow& from, size_t width, const PlanarRow& to) const {
  if (frame_.components == 1) {
    for (uint8_t* plane : {to.red, to.green, to.blue}) std::memcpy(plane, from.luma, width);
  } else {
    ycc_row_to_planes(from.luma, from.chroma[0], from.chroma[1], width, to);
  }
}

OwnJpegDecoder::SampleRow OwnJpegDecoder::sample_row(int y, const Box& box) {
  SampleRow row;
  row.luma = planes_[0].row(y) + (box.x - window_.columns.first * grid_.mcu_width);
  if (frame_.components == 1) return row;
  const int columns = grid_.doubles_columns ? 2 : 1;  // of pixels to a sample of chroma
  for (size_t c = 0; c < 2; ++c) {
    Plane& plane = planes_[c + 1];
    const int last = grid_.component_height[c + 1] - 1;
    const int left = box.x / columns;
    const auto count = static_cast<size_t>((box.x + box.width - 1) / columns - left + 1);
    const int column = left - grid_.block[c + 1] * window_.columns.first;
    const int near_y = grid_.doubles_rows ? y / 2 : y;
    const int far_y = std::clamp((y & 1) == 0 ? near_y - 1 : near_y + 1, 0, last);
    const uint8_t* const near = plane.row(near_y) + column;
    uint8_t* const out = chroma_[c].data();
    row.chroma[c] = out;
    if (!grid_.interpolates) {
      row.chroma[c] = near;
      if (grid_.doubles_columns) {
        for (size_t i = 0; i < count; ++i) out[2 * i] = out[2 * i + 1] = near[i];
        row.chroma[c] = out + (box.x & 1);
      }
    } else if (grid_.doubles_columns) {
      if (grid_.doubles_rows) {
        upsample_2x2(near, plane.row(far_y) + column, count, out);
      } else {
        upsample_2x1(near, count, out);
      }
      row.chroma[c] += box.x & 1;
    } else if (grid_.doubles_rows) {
      upsample_1x2(near, plane.row(far_y) + column, (y & 1) == 0 ? 1 : 2, count, out);
    } else {
      row.chroma[c] = near;
    }
  }
  return row;
}

}  // namespace penstock
