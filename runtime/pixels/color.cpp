#include "runtime/pixels/color.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/pixels/color_math.h"

namespace penstock {

namespace {

size_t byte_count(const PixelBuffer& image) {
  return image.row_bytes() * static_cast<size_t>(image.height());
}

using Histogram = std::array<int64_t, 256>;

std::array<Histogram, 3> histograms_of(const PixelBuffer& image) {
  std::array<Histogram, 3> histograms{};
  const uint8_t* end = image.row(0) + byte_count(image);
  for (const uint8_t* p = image.row(0); p != end; p += 3) {
    ++histograms[0][p[0]];
    ++histograms[1][p[1]];
    ++histograms[2][p[2]];
  }
  return histograms;
}

ByteTable identity_table() {
  ByteTable table{};
  for (size_t i = 0; i < 256; ++i) table[i] = static_cast<uint8_t>(i);
  return table;
}

void map_channels(PixelBuffer& image, const std::array<ByteTable, 3>& tables) {
  uint8_t* end = image.row(0) + byte_count(image);
  for (uint8_t* p = image.row(0); p != end; p += 3) {
    p[0] = tables[0][p[0]];
    p[1] = tables[1][p[1]];
    p[2] = tables[2][p[2]];
  }
}

ByteTable autocontrast_table(const Histogram& histogram) {
  int low = 0;
  while (low < 255 && histogram[static_cast<size_t>(low)] == 0) ++low;
  int high = 255;
  while (high > 0 && histogram[static_cast<size_t>(high)] == 0) --high;
  ByteTable table{};
  for (int i = 0; i < 256; ++i) table[static_cast<size_t>(i)] = autocontrast_value(i, low, high);
  return table;
}

ByteTable equalize_table(const Histogram& histogram) {
  const int64_t step = equalize_step(histogram.data());
  if (step == 0) return identity_table();
  ByteTable table{};
  int64_t below = 0;
  for (size_t i = 0; i < 256; ++i) {
    table[i] = equalize_value(below, step);
    below += histogram[i];
  }
  return table;
}

void blend_bytes(const uint8_t* degenerate, uint8_t* values, size_t count, float factor) {
  for (size_t i = 0; i < count; ++i) values[i] = blend_value(degenerate[i], values[i], factor);
}

// All but the first and the last pixel.
void smooth_row(const uint8_t* above, const uint8_t* here, const uint8_t* below, size_t bytes, uint8_t* out) {
  for (size_t i = 3; i < bytes - 3; ++i) {
    const int neighbours =
        above[i - 3] + above[i] + above[i + 3] + here[i - 3] + here[i + 3] + below[i - 3] + below[i] + below[i + 3];
    out[i] = smooth_value(neighbours, here[i]);
  }
}

}  // namespace

ByteTable brightness_table(float factor) {
  ByteTable table{};
  for (int i = 0; i < 256; ++i) table[static_cast<size_t>(i)] = blend_value(0, i, factor);
  return table;
}

ByteTable posterize_table(int bits) {
  ByteTable table{};
  const int mask = ~((1 << (8 - bits)) - 1);
  for (int i = 0; i < 256; ++i) table[static_cast<size_t>(i)] = static_cast<uint8_t>(i & mask);
  return table;
}

ByteTable solarize_table(double threshold) {
  ByteTable table{};
  for (int i = 0; i < 256; ++i) table[static_cast<size_t>(i)] = static_cast<uint8_t>(i < threshold ? i : 255 - i);
  return table;
}

ByteTable invert_table() {
  return solarize_table(0);
}

void map_bytes(PixelBuffer& image, const ByteTable& table) {
  uint8_t* end = image.row(0) + byte_count(image);
  for (uint8_t* p = image.row(0); p != end; ++p) *p = table[*p];
}

void grayscale(PixelBuffer& image) {
  uint8_t* end = image.row(0) + byte_count(image);
  for (uint8_t* p = image.row(0); p != end; p += 3) p[0] = p[1] = p[2] = grey_of(p[0], p[1], p[2]);
}

void adjust_contrast(PixelBuffer& image, float factor) {
  uint64_t sum = 0;
  const uint8_t* end = image.row(0) + byte_count(image);
  for (const uint8_t* p = image.row(0); p != end; p += 3) sum += grey_of(p[0], p[1], p[2]);
  const int mean = rounded_mean(sum, byte_count(image) / 3);
  ByteTable table{};
  for (int i = 0; i < 256; ++i) table[static_cast<size_t>(i)] = blend_value(mean, i, factor);
  map_bytes(image, table);
}

void adjust_saturation(PixelBuffer& image, float factor) {
  // Grey first, then blending, a part of the image at a time: each loop is simple enough for vector code.
  constexpr size_t kPart = 3 * 256;
  uint8_t grey[kPart];
  uint8_t* end = image.row(0) + byte_count(image);
  for (uint8_t* p = image.row(0); p < end; p += kPart) {
    const size_t bytes = std::min(kPart, static_cast<size_t>(end - p));
    for (size_t i = 0; i < bytes; i += 3) grey[i] = grey[i + 1] = grey[i + 2] = grey_of(p[i], p[i + 1], p[i + 2]);
    blend_bytes(grey, p, bytes, factor);
  }
}

void adjust_sharpness(PixelBuffer& image, float factor, PaintScratch& scratch) {
  // SMOOTH leaves the border as it is, and so does blending it with itself.
  const int height = image.height();
  if (image.width() < 3 || height < 3) return;
  const size_t row = image.row_bytes();
  // The rows above and at the current one before they were changed, and the smoothed one.
  scratch.bytes.resize(3 * row);
  auto* above = reinterpret_cast<uint8_t*>(scratch.bytes.data());
  uint8_t* here = above + row;
  uint8_t* smooth = here + row;
  std::memcpy(above, image.row(0), row);
  for (int y = 1; y < height - 1; ++y) {
    uint8_t* out = image.row(y);
    const uint8_t* below = image.row(y + 1);
    std::memcpy(here, out, row);
    smooth_row(above, here, below, row, smooth);
    blend_bytes(smooth + 3, out + 3, row - 6, factor);
    std::swap(above, here);
  }
}

void shift_hue(PixelBuffer& image, uint8_t shift) {
  HuePlace places[256];
  float saturations[256];
  for (int i = 0; i < 256; ++i) {
    places[i] = place_of_hue(static_cast<uint8_t>(i));
    saturations[i] = static_cast<float>(i / 255.0);
  }
  uint8_t* end = image.row(0) + byte_count(image);
  for (uint8_t* p = image.row(0); p != end; p += 3) {
    const Hsv hsv = hsv_of({p[0], p[1], p[2]});
    const Rgb rgb = rgb_of(places[static_cast<uint8_t>(hsv.h + shift)], saturations[hsv.s], hsv.v);
    p[0] = rgb.r;
    p[1] = rgb.g;
    p[2] = rgb.b;
  }
}

uint8_t hue_shift(double factor) {
  return static_cast<uint8_t>(static_cast<int>(factor * 255) & 255);
}

void permute_channels(PixelBuffer& image, const ChannelOrder& from) {
  uint8_t* end = image.row(0) + byte_count(image);
  for (uint8_t* p = image.row(0); p != end; p += 3) {
    const uint8_t rgb[3] = {p[0], p[1], p[2]};
    for (size_t c = 0; c < 3; ++c) p[c] = rgb[from[c]];
  }
}

void autocontrast(PixelBuffer& image) {
  const std::array<Histogram, 3> histograms = histograms_of(image);
  map_channels(
      image, {autocontrast_table(histograms[0]), autocontrast_table(histograms[1]), autocontrast_table(histograms[2])});
}

void equalize(PixelBuffer& image) {
  const std::array<Histogram, 3> histograms = histograms_of(image);
  map_channels(image, {equalize_table(histograms[0]), equalize_table(histograms[1]), equalize_table(histograms[2])});
}

}  // namespace penstock
