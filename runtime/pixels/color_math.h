// The arithmetic of colour operations: what one pixel is, given the pixel before. Equal to Pillow's, byte for byte.
//
//   uint8_t grey = grey_of(r, g, b);
//   uint8_t brighter = blend_value(0, value, 1.3F);
//   Hsv hsv = hsv_of({r, g, b});  hsv.h += 7;  Rgb turned = rgb_of(hsv);
//
// Source of the semantics: Pillow src/libImaging/Convert.c (L24, rgb2hsv_row, hsv2rgb), Blend.c (ImagingBlend),
//   Filter.c (ImagingFilter3x3 with ImageFilter.SMOOTH). Pillow computes in float and double; here integers wherever
//   they give the same bytes, which the test of each function proves over all inputs, and otherwise the same IEEE
//   operations in the same order. They must not be fused: -ffp-contract=off, on a GPU -fmad=false.
// Thread-safety: pure functions.
#pragma once

#include <cstdint>

#include "runtime/base/host_device.h"

namespace penstock {

struct Rgb {
  uint8_t r = 0;
  uint8_t g = 0;
  uint8_t b = 0;
};

struct Hsv {
  uint8_t h = 0;
  uint8_t s = 0;
  uint8_t v = 0;
};

PENSTOCK_HOST_DEVICE inline uint8_t grey_of(int r, int g, int b) {
  return static_cast<uint8_t>((r * 19595 + g * 38470 + b * 7471 + 0x8000) >> 16);
}

// Image.blend(degenerate, image, factor) of one byte: 0 is the degenerate, 1 the image, above 1 more than the image.
PENSTOCK_HOST_DEVICE inline uint8_t blend_value(int degenerate, int value, float factor) {
  const float product = factor * static_cast<float>(value - degenerate);
  const float sum = static_cast<float>(degenerate) + product;
  // In this form it is a maximum and a minimum to the compiler, and loops over it become vector code.
  const float floored = sum > 0.0F ? sum : 0.0F;
  const float clipped = floored < 255.0F ? floored : 255.0F;
  return static_cast<uint8_t>(static_cast<int>(clipped));
}

// ImageFilter.SMOOTH: (the eight neighbours + 5 * the middle) / 13, rounded. A sum of integers is never half way
// between two multiples of 13, so Pillow's floats round to the same.
PENSTOCK_HOST_DEVICE inline uint8_t smooth_value(int neighbours, int middle) {
  return static_cast<uint8_t>((2 * (neighbours + 5 * middle) + 13) / 26);
}

// ImageStat's mean of so many grey values, rounded, halves up: what contrast turns around.
PENSTOCK_HOST_DEVICE inline int rounded_mean(uint64_t sum, uint64_t count) {
  return static_cast<int>((2 * sum + count) / (2 * count));
}

// ImageOps.autocontrast without cutoff, of a channel whose values lie between these two: in doubles, as there.
PENSTOCK_HOST_DEVICE inline uint8_t autocontrast_value(int value, int low, int high) {
  if (high <= low) return static_cast<uint8_t>(value);
  const double scale = 255.0 / (high - low);
  const double offset = -low * scale;
  const double product = value * scale;
  const auto stretched = static_cast<int>(product + offset);
  return static_cast<uint8_t>(stretched < 0 ? 0 : stretched > 255 ? 255 : stretched);
}

// ImageOps.equalize: how many pixels make one grey level; 0: the channel stays as it is.
template <class Count>
PENSTOCK_HOST_DEVICE inline int64_t equalize_step(const Count* histogram) {
  int64_t total = 0;
  int64_t last = 0;  // the count of the largest value there is
  int values = 0;
  for (int i = 0; i < 256; ++i) {
    const auto count = static_cast<int64_t>(histogram[i]);
    if (count == 0) continue;
    total += count;
    last = count;
    ++values;
  }
  return values <= 1 ? 0 : (total - last) / 255;
}

// The equalized value where `below` pixels are less.
PENSTOCK_HOST_DEVICE inline uint8_t equalize_value(int64_t below, int64_t step) {
  const int64_t value = (step / 2 + below) / step;
  return static_cast<uint8_t>(value > 255 ? 255 : value);
}

namespace color_detail {

// Pillow's floats, for the colours whose hue in 255ths is a whole number: there the rounding errors decide which one.
PENSTOCK_HOST_DEVICE inline uint8_t hue_by_floats(Rgb p, int largest, int range) {
  const auto cr = static_cast<float>(range);
  const float rc = static_cast<float>(largest - p.r) / cr;
  const float gc = static_cast<float>(largest - p.g) / cr;
  const float bc = static_cast<float>(largest - p.b) / cr;
  float h = 0;
  if (p.r == largest) {
    h = bc - gc;
  } else if (p.g == largest) {
    h = static_cast<float>(2.0 + static_cast<double>(rc) - static_cast<double>(bc));
  } else {
    h = static_cast<float>(4.0 + static_cast<double>(gc) - static_cast<double>(rc));
  }
  double turns = static_cast<double>(h) / 6.0 + 1.0;  // within [5/6, 2)
  if (turns >= 1.0) turns -= 1.0;
  return static_cast<uint8_t>(static_cast<double>(static_cast<float>(turns)) * 255.0);
}

}  // namespace color_detail

PENSTOCK_HOST_DEVICE inline Hsv hsv_of(Rgb p) {
  const int r = p.r, g = p.g, b = p.b;
  const int rg_largest = r > g ? r : g;
  const int rg_smallest = r < g ? r : g;
  const int largest = rg_largest > b ? rg_largest : b;
  const int smallest = rg_smallest < b ? rg_smallest : b;
  const int range = largest - smallest;
  if (range == 0) return {0, 0, static_cast<uint8_t>(largest)};
  int sixths = r == largest ? g - b : g == largest ? 2 * range + b - r : 4 * range + r - g;  // of a turn, times range
  if (sixths < 0) sixths += 6 * range;
  // floor(255 * sixths / (6 * range))
  const int numerator = 85 * sixths;
  const int quotient = numerator / (2 * range);
  const bool whole = quotient * 2 * range == numerator;
  return {whole ? color_detail::hue_by_floats(p, largest, range) : static_cast<uint8_t>(quotient),
          static_cast<uint8_t>(255 * range / largest), static_cast<uint8_t>(largest)};
}

// Which sixth of the circle a hue lies in, 0 to 6, and how far into it.
struct HuePlace {
  int sixth = 0;
  float part = 0;
};

PENSTOCK_HOST_DEVICE inline HuePlace place_of_hue(uint8_t h) {
  const double sixths = static_cast<double>(h) * 6.0 / 255.0;
  const int sixth = static_cast<int>(sixths);
  return {sixth, static_cast<float>(sixths - static_cast<double>(sixth))};
}

// `saturation` is s / 255 in float.
PENSTOCK_HOST_DEVICE inline Rgb rgb_of(HuePlace place, float saturation, uint8_t v) {
  if (saturation == 0.0F) return {v, v, v};
  const auto value = static_cast<double>(v);
  const float less = saturation * place.part;
  // round() of C: the values are never so close below a half that adding one half would round up.
  const auto p = static_cast<uint8_t>(value * (1.0 - static_cast<double>(saturation)) + 0.5);
  const auto q = static_cast<uint8_t>(value * (1.0 - static_cast<double>(less)) + 0.5);
  const auto t = static_cast<uint8_t>(
      value * (1.0 - static_cast<double>(saturation) * (1.0 - static_cast<double>(place.part))) + 0.5);
  switch (place.sixth) {
    case 1: return {q, v, p};
    case 2: return {p, v, t};
    case 3: return {p, q, v};
    case 4: return {t, p, v};
    case 5: return {v, p, q};
    default: return {v, t, p};
  }
}

PENSTOCK_HOST_DEVICE inline Rgb rgb_of(Hsv hsv) {
  return rgb_of(place_of_hue(hsv.h), static_cast<float>(static_cast<double>(static_cast<float>(hsv.s)) / 255.0), hsv.v);
}

}  // namespace penstock
