// What one thread of a GPU does to pixels that are there already: colour, blur, warps; host and GPU compile the same.
//
//   point_pixel(memory, part, unit);
//
// kernels.h has the stages before these and the list of all. The arithmetic is that of pixels/color_math.h, blur_math.h
//   and warp_math.h, which the CPU's transforms are made of too; tables come from the CPU where it can know them.
//   Floats are IEEE's, unfused (-fmad=false on a GPU).
// Thread-safety: different units of a stage write different bytes, and read nothing that the stage writes, but for two:
//   point may read the pixel that it writes, and tally adds integers atomically, whose sum has no order.
#pragma once

#include <cstdint>

#include "runtime/base/host_device.h"
#include "runtime/gpu/batch_layout.h"
#include "runtime/pixels/blur_math.h"
#include "runtime/pixels/color_math.h"
#include "runtime/pixels/erase_noise.h"
#include "runtime/pixels/gaussian_noise.h"
#include "runtime/pixels/warp_math.h"

namespace penstock {

// A launch is one thread's on the host.
PENSTOCK_HOST_DEVICE inline void add_to(uint64_t* sum, uint64_t n) {
#ifdef __CUDA_ARCH__
  static_assert(sizeof(unsigned long long) == sizeof(uint64_t));
  atomicAdd(reinterpret_cast<unsigned long long*>(sum), static_cast<unsigned long long>(n));
#else
  *sum += n;
#endif
}

PENSTOCK_HOST_DEVICE inline void add_to(uint32_t* sum, uint32_t n) {
#ifdef __CUDA_ARCH__
  atomicAdd(sum, n);
#else
  *sum += n;
#endif
}

PENSTOCK_HOST_DEVICE inline void load_pixel(const uint8_t* planes, uint64_t area, uint64_t at, uint8_t* rgb) {
  for (uint64_t c = 0; c < 3; ++c) rgb[c] = planes[c * area + at];
}

PENSTOCK_HOST_DEVICE inline void store_pixel(uint8_t* planes, uint32_t area, uint32_t unit, const uint8_t* rgb) {
  for (uint32_t c = 0; c < 3; ++c) planes[uint64_t{c} * area + unit] = rgb[c];
}

PENSTOCK_HOST_DEVICE inline bool holds(const GpuBox& box, int x, int y) {
  return x >= box.x && y >= box.y && x < box.x + box.width && y < box.y + box.height;
}

PENSTOCK_HOST_DEVICE inline void erase_pixel(const PointStep& step, int x, int y, uint8_t* rgb) {
  if (!holds(step.box, x, y)) return;
  if (step.kind == PointKind::fill) {
    for (int c = 0; c < 3; ++c) rgb[c] = step.colour[c];
    return;
  }
  const uint32_t first = noise_blocks(step.box.width) * static_cast<uint32_t>(y - step.box.y);
  const uint32_t at = 3 * static_cast<uint32_t>(x - step.box.x);
  PhiloxBlock block = noise_block(step.seed, first + at / 16);
  for (uint32_t c = 0; c < 3; ++c) {
    if (c > 0 && (at + c) % 16 == 0) block = noise_block(step.seed, first + (at + c) / 16);
    rgb[c] = noise_byte(block, (at + c) % 16);
  }
}

PENSTOCK_HOST_DEVICE inline void point_pixel(uint8_t* memory, const PointPart& part, uint32_t unit) {
  uint8_t rgb[3];
  load_pixel(memory + part.from_at, part.units, unit, rgb);
  const auto* const steps = reinterpret_cast<const PointStep*>(memory + part.steps_at);
  for (uint32_t s = 0; s < part.steps; ++s) {
    const PointStep& step = steps[s];
    switch (step.kind) {
      case PointKind::table:
        for (uint32_t c = 0; c < 3; ++c) rgb[c] = memory[step.table_at + uint64_t{c} * step.stride + rgb[c]];
        break;
      case PointKind::grey: rgb[0] = rgb[1] = rgb[2] = grey_of(rgb[0], rgb[1], rgb[2]); break;
      case PointKind::saturation: {
        const int grey = grey_of(rgb[0], rgb[1], rgb[2]);
        for (int c = 0; c < 3; ++c) rgb[c] = blend_value(grey, rgb[c], step.factor);
        break;
      }
      case PointKind::hue: {
        Hsv hsv = hsv_of({rgb[0], rgb[1], rgb[2]});
        hsv.h = static_cast<uint8_t>(hsv.h + step.shift);
        const Rgb turned = rgb_of(hsv);
        rgb[0] = turned.r;
        rgb[1] = turned.g;
        rgb[2] = turned.b;
        break;
      }
      case PointKind::permute: {
        // Chosen, not looked up: a table of a thread's own would lie in memory.
        const uint8_t red = rgb[0], green = rgb[1], blue = rgb[2];
        for (int c = 0; c < 3; ++c) rgb[c] = step.colour[c] == 0 ? red : step.colour[c] == 1 ? green : blue;
        break;
      }
      case PointKind::noise_clipped:
      case PointKind::noise_wrapped: {
        const PhiloxBlock block = normal_block(step.seed, unit);
        const bool clip = step.kind == PointKind::noise_clipped;
        for (int c = 0; c < 3; ++c) {
          rgb[c] = noisy_byte(rgb[c], normal_of(block.word[c]), step.offset, step.factor, clip);
        }
        break;
      }
      case PointKind::fill:
      case PointKind::noise: {
        const auto width = static_cast<uint32_t>(part.width);
        erase_pixel(step, static_cast<int>(unit % width), static_cast<int>(unit / width), rgb);
        break;
      }
    }
  }
  store_pixel(memory + part.to_at, part.units, unit, rgb);
}

// Its pixels lie part.units apart, so that neighbouring threads read neighbours.
PENSTOCK_HOST_DEVICE inline void tally_pixels_of(uint8_t* memory, const TallyPart& part, uint32_t unit) {
  uint64_t sum = 0;
  for (uint64_t pixel = unit; pixel < part.pixels; pixel += part.units) {
    uint8_t rgb[3];
    load_pixel(memory + part.from_at, part.pixels, pixel, rgb);
    if (part.kind == ToneKind::contrast) {
      sum += grey_of(rgb[0], rgb[1], rgb[2]);
      continue;
    }
    auto* const histograms = reinterpret_cast<uint32_t*>(memory + part.to_at);
    for (uint32_t c = 0; c < 3; ++c) add_to(histograms + 256 * c + rgb[c], 1);
  }
  if (part.kind == ToneKind::contrast) add_to(reinterpret_cast<uint64_t*>(memory + part.to_at), sum);
}

PENSTOCK_HOST_DEVICE inline void tone_entry(uint8_t* memory, const TonePart& part, uint32_t unit) {
  uint8_t* const to = memory + part.to_at + unit;
  if (part.kind == ToneKind::contrast) {
    const uint64_t sum = *reinterpret_cast<const uint64_t*>(memory + part.from_at);
    *to = blend_value(rounded_mean(sum, part.pixels), static_cast<int>(unit), part.factor);
    return;
  }
  const auto value = static_cast<int>(unit % 256);
  const auto* const histogram = reinterpret_cast<const uint32_t*>(memory + part.from_at) + (unit - unit % 256);
  if (part.kind == ToneKind::autocontrast) {
    int low = 0;
    while (low < 255 && histogram[low] == 0) ++low;
    int high = 255;
    while (high > 0 && histogram[high] == 0) --high;
    *to = autocontrast_value(value, low, high);
    return;
  }
  const int64_t step = equalize_step(histogram);
  int64_t below = 0;
  for (int i = 0; i < value; ++i) below += histogram[i];
  *to = step == 0 ? static_cast<uint8_t>(value) : equalize_value(below, step);
}

PENSTOCK_HOST_DEVICE inline void smooth_pixel(uint8_t* memory, const SmoothPart& part, uint32_t unit) {
  const auto width = static_cast<uint32_t>(part.width);
  const uint32_t x = unit % width;
  const uint32_t y = unit / width;
  // The border stays as it is.
  const bool inside = x > 0 && y > 0 && x + 1 < width && y + 1 < static_cast<uint32_t>(part.height);
  uint8_t rgb[3];
  for (uint32_t c = 0; c < 3; ++c) {
    const uint8_t* const here = memory + part.from_at + uint64_t{c} * part.units + unit;
    rgb[c] = *here;
    if (!inside) continue;
    const uint8_t* const above = here - width;
    const uint8_t* const below = here + width;
    const int neighbours = above[-1] + above[0] + above[1] + here[-1] + here[1] + below[-1] + below[0] + below[1];
    rgb[c] = blend_value(smooth_value(neighbours, *here), *here, part.factor);
  }
  store_pixel(memory + part.to_at, part.units, unit, rgb);
}

// The sum along a line of `size` values that lie `stride` apart.
template <class Value>
PENSTOCK_HOST_DEVICE inline float blur_at(const Value* line, uint64_t stride, int at, int size, const float* weights,
                                          int half) {
  const auto value = [&](int i) {
    return static_cast<float>(line[static_cast<uint64_t>(reflected(i, size)) * stride]);
  };
  float sum = weights[0] * value(at);
  for (int k = 1; k <= half; ++k) sum = blur_add(sum, weights[k], value(at - k), value(at + k));
  return sum;
}

PENSTOCK_HOST_DEVICE inline void blur_pixel_across(uint8_t* memory, const BlurPart& part, uint32_t unit) {
  const auto width = static_cast<uint32_t>(part.width);
  const uint32_t y = unit / width;
  const auto* const weights = reinterpret_cast<const float*>(memory + part.weights_at);
  for (uint32_t c = 0; c < 3; ++c) {
    const uint64_t plane = uint64_t{c} * part.units;
    reinterpret_cast<float*>(memory + part.to_at)[plane + unit] =
        blur_at(memory + part.from_at + plane + uint64_t{y} * width, 1, static_cast<int>(unit - y * width), part.width,
                weights, part.half);
  }
}

PENSTOCK_HOST_DEVICE inline void blur_pixel_down(uint8_t* memory, const BlurPart& part, uint32_t unit) {
  const auto width = static_cast<uint32_t>(part.width);
  const uint32_t y = unit / width;
  const auto* const weights = reinterpret_cast<const float*>(memory + part.weights_at);
  uint8_t rgb[3];
  for (uint32_t c = 0; c < 3; ++c) {
    const float* const plane = reinterpret_cast<const float*>(memory + part.from_at) + uint64_t{c} * part.units;
    rgb[c] =
        blur_round(blur_at(plane + (unit - y * width), width, static_cast<int>(y), part.height, weights, part.half));
  }
  store_pixel(memory + part.to_at, part.units, unit, rgb);
}

PENSTOCK_HOST_DEVICE inline void warp_pixel(uint8_t* memory, const WarpPart& part, uint32_t unit) {
  const auto width = static_cast<uint32_t>(part.width);
  const auto x = static_cast<int>(unit % width);
  const auto y = static_cast<int>(unit / width);
  const PlanarImage in{memory + part.from_at, part.from_width, part.from_height};
  uint8_t rgb[3] = {part.fill[0], part.fill[1], part.fill[2]};
  switch (part.kind) {
    case WarpKind::nearest: sample_nearest(in, part.map.at(x, y), rgb); break;
    case WarpKind::fixed: sample_fixed(in, part.fixed, x, y, rgb); break;
    case WarpKind::bilinear: sample_bilinear(in, part.map.at(x, y), rgb); break;
    case WarpKind::bicubic: sample_bicubic(in, part.map.at(x, y), rgb); break;
  }
  store_pixel(memory + part.to_at, part.units, unit, rgb);
}

PENSTOCK_HOST_DEVICE inline void gather_pixel(uint8_t* memory, const GatherPart& part, uint32_t unit) {
  const auto width = static_cast<uint32_t>(part.width);
  const uint32_t x = unit % width;
  const uint32_t y = unit / width;
  const int from_x = reinterpret_cast<const int32_t*>(memory + part.columns_at)[part.turned != 0 ? y : x];
  const int from_y = reinterpret_cast<const int32_t*>(memory + part.rows_at)[part.turned != 0 ? x : y];
  uint8_t rgb[3] = {part.fill[0], part.fill[1], part.fill[2]};
  if (from_x >= 0 && from_y >= 0) {
    copy_pixel_at(PlanarImage{memory + part.from_at, part.from_width, part.from_height}, from_x, from_y, rgb);
  }
  store_pixel(memory + part.to_at, part.units, unit, rgb);
}

}  // namespace penstock
