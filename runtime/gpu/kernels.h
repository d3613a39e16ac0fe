// What one thread of a GPU does, stage by stage; host and GPU compile the same functions.
//
//   colour_pixel(memory, part, unit);         // memory: of the batch (batch_layout.h); unit < part.units
//
// cuda/ wraps them in grids, run_on_host.h in loops, by the list at the end. Here from coefficients to an image of
//   the wanted size, in integers, by the arithmetic of decode/jpeg/jpeg_math.h and pixels/resample_math.h, which the
//   CPU path is tested against too; what happens to pixels then is in pixel_kernels.h.
// Safety: parts are made by batch_builder.h from numbers that it has checked; nothing but entropy_kernel.h and
//   sync_kernel.h looks at a file's bytes, and of coefficients every value is harmless: also those that nobody wrote,
//   where the status is not good.
// Thread-safety: different units of a stage write different bytes, and read nothing that the stage writes.
#pragma once

#include <cstdint>
#include <cstring>

#include "runtime/base/host_device.h"
#include "runtime/decode/jpeg/coefficient_tiles.h"
#include "runtime/decode/jpeg/jpeg_math.h"
#include "runtime/gpu/batch_layout.h"
#include "runtime/gpu/entropy_kernel.h"
#include "runtime/gpu/hash_kernel.h"
#include "runtime/gpu/pixel_kernels.h"
#include "runtime/gpu/sync_kernel.h"
#include "runtime/pixels/resample_math.h"

namespace penstock {

// As CoefficientRow, of samples.
struct alignas(8) SampleRow {
  uint8_t value[8];
};

PENSTOCK_HOST_DEVICE inline void inverse_block(uint8_t* memory, const InversePart& part, uint32_t unit) {
  const uint32_t row = unit / part.across;
  const uint32_t column = unit - row * part.across;
  const auto* const from =
      reinterpret_cast<const int16_t*>(memory + part.coefficients_at + row * part.row_bytes) + tile_block_begin(column);
  int16_t block[64];
  for (int r = 0; r < 8; ++r) {
    const CoefficientRow values = *reinterpret_cast<const CoefficientRow*>(from + tile_offset(size_t{8} * r));
    for (int c = 0; c < 8; ++c) block[8 * r + c] = values.value[c];
  }
  uint8_t samples[64];
  idct_block(block, part.quant, samples, 8);
  uint8_t* const to = memory + part.samples.at + uint64_t{8} * row * part.samples.stride + size_t{8} * column;
  for (int r = 0; r < 8; ++r) {
    SampleRow values;
    for (int c = 0; c < 8; ++c) values.value[c] = samples[8 * r + c];
    *reinterpret_cast<SampleRow*>(to + static_cast<uint64_t>(r) * part.samples.stride) = values;
  }
}

PENSTOCK_HOST_DEVICE inline int sample_at(const uint8_t* memory, const SamplePlane& plane, int x, int y) {
  return memory[plane.at + static_cast<uint64_t>(y - plane.y) * plane.stride + static_cast<uint64_t>(x - plane.x)];
}

// The neighbour that interpolation takes besides the sample itself: at the image's border that again.
PENSTOCK_HOST_DEVICE inline int far_neighbour(int sample, bool upper, int size) {
  if (upper) return sample + 1 < size ? sample + 1 : sample;
  return sample > 0 ? sample - 1 : sample;
}

// The chroma of pixel (x, y) of the image.
PENSTOCK_HOST_DEVICE inline int chroma_at(const uint8_t* memory, const ColourPart& part, const SamplePlane& plane,
                                          int x, int y) {
  const bool right = (x & 1) != 0;
  const bool lower = (y & 1) != 0;
  if (part.v == 1) {
    if (part.h == 1) return sample_at(memory, plane, x, y);
    const int near = sample_at(memory, plane, x / 2, y);
    const int far = sample_at(memory, plane, far_neighbour(x / 2, right, part.chroma_width), y);
    return right ? upsample_right(near, far) : upsample_left(near, far);
  }
  const int near_y = y / 2;
  const int far_y = far_neighbour(near_y, lower, part.chroma_height);
  if (part.h == 1) {
    return upsample_down(sample_at(memory, plane, x, near_y), sample_at(memory, plane, x, far_y), lower ? 2 : 1);
  }
  const int near_x = x / 2;
  const int far_x = far_neighbour(near_x, right, part.chroma_width);
  const int near = 3 * sample_at(memory, plane, near_x, near_y) + sample_at(memory, plane, near_x, far_y);
  const int far = 3 * sample_at(memory, plane, far_x, near_y) + sample_at(memory, plane, far_x, far_y);
  return right ? upsample_right_of_sums(near, far) : upsample_left_of_sums(near, far);
}

// What stands at (x, y) of the result: true and the source's pixel, or false and a colour.
PENSTOCK_HOST_DEVICE inline bool find_source(const uint8_t* memory, const Placement& place, int x, int y, int& source_x,
                                             int& source_y, uint8_t* fill) {
  if (holds(place.live, x, y)) {
    const int column = x - place.live.x;
    const int row = y - place.live.y;
    source_x = place.source_x + (place.mirror_x != 0 ? place.live.width - 1 - column : column);
    source_y = place.source_y + (place.mirror_y != 0 ? place.live.height - 1 - row : row);
    return true;
  }
  const auto* const rings = reinterpret_cast<const GpuRing*>(memory + place.rings_at);
  for (uint32_t i = 0; i < place.rings; ++i) {
    if (!holds(rings[i].outer, x, y) || holds(rings[i].inner, x, y)) continue;
    for (int c = 0; c < 3; ++c) fill[c] = rings[i].fill[c];
    break;
  }
  return false;
}

PENSTOCK_HOST_DEVICE inline void colour_pixel(uint8_t* memory, const ColourPart& part, uint32_t unit) {
  const auto width = static_cast<uint32_t>(part.place.width);
  const auto row = static_cast<int>(unit / width);
  const auto column = static_cast<int>(unit % width);
  uint8_t rgb[3] = {};
  int x = 0;
  int y = 0;
  if (find_source(memory, part.place, column, row, x, y, rgb)) {
    const int luma = sample_at(memory, part.luma, x, y);
    if (part.components == 1) {
      rgb[0] = rgb[1] = rgb[2] = static_cast<uint8_t>(luma);
    } else {
      ycc_to_rgb(luma, chroma_at(memory, part, part.chroma[0], x, y), chroma_at(memory, part, part.chroma[1], x, y),
                 rgb);
    }
  }
  store_pixel(memory + part.to_at, part.units, unit, rgb);
}

// Three values of one output. `step` is from one source to the next, `area` from one plane to the next.
PENSTOCK_HOST_DEVICE inline void resample_pixel(const uint8_t* memory, const GpuTaps& taps, uint32_t output,
                                                const uint8_t* from, uint64_t step, uint64_t area, uint8_t* rgb) {
  const int start = reinterpret_cast<const int32_t*>(memory + taps.start_at)[output];
  const int count = reinterpret_cast<const int32_t*>(memory + taps.size_at)[output];
  const auto* const weights =
      reinterpret_cast<const int32_t*>(memory + taps.weight_at) + uint64_t{output} * taps.stride;
  from += static_cast<uint64_t>(start) * step;
  int32_t sums[3] = {kResampleHalf, kResampleHalf, kResampleHalf};
  for (int k = 0; k < count; ++k, from += step) {
    const int32_t weight = weights[static_cast<uint64_t>(k) * taps.step];
    for (int c = 0; c < 3; ++c) sums[c] += static_cast<int32_t>(from[static_cast<uint64_t>(c) * area]) * weight;
  }
  for (int c = 0; c < 3; ++c) rgb[c] = clip_q22(sums[c]);
}

PENSTOCK_HOST_DEVICE inline void across_pixel(uint8_t* memory, const AcrossPart& part, uint32_t unit) {
  const auto width = static_cast<uint32_t>(part.width);
  const uint32_t row = unit / width;
  const auto from_width = static_cast<uint64_t>(part.from_width);
  uint8_t rgb[3];
  resample_pixel(memory, part.taps, unit - row * width, memory + part.from_at + row * from_width, 1,
                 from_width * static_cast<uint64_t>(part.height), rgb);
  store_pixel(memory + part.to_at, part.units, unit, rgb);
}

PENSTOCK_HOST_DEVICE inline void down_pixel(uint8_t* memory, const DownPart& part, uint32_t unit) {
  const auto width = static_cast<uint32_t>(part.place.width);
  const auto row = static_cast<int>(unit / width);
  const auto column = static_cast<int>(unit % width);
  uint8_t rgb[3] = {};
  int x = 0;
  int y = 0;
  if (find_source(memory, part.place, column, row, x, y, rgb)) {
    const auto from_width = static_cast<uint64_t>(part.from_width);
    resample_pixel(memory, part.taps, static_cast<uint32_t>(y), memory + part.from_at + static_cast<uint64_t>(x),
                   from_width, from_width * static_cast<uint64_t>(part.from_height), rgb);
  }
  store_pixel(memory + part.to_at, part.units, unit, rgb);
}

PENSTOCK_HOST_DEVICE inline void place_pixel(uint8_t* memory, const PlacePart& part, uint32_t unit) {
  const auto width = static_cast<uint32_t>(part.place.width);
  uint8_t rgb[3] = {};
  int x = 0;
  int y = 0;
  if (find_source(memory, part.place, static_cast<int>(unit % width), static_cast<int>(unit / width), x, y, rgb)) {
    copy_pixel_at(PlanarImage{memory + part.from_at, part.from_width, part.from_height}, x, y, rgb);
  }
  store_pixel(memory + part.to_at, part.units, unit, rgb);
}

PENSTOCK_HOST_DEVICE inline void finish_pixel(uint8_t* memory, uint8_t* outputs, const FinishPart& part,
                                              uint32_t unit) {
  const auto* const table = reinterpret_cast<const uint32_t*>(memory + part.table_at);
  if (outputs == nullptr) outputs = memory;
  for (uint32_t c = 0; c < 3; ++c) {
    const uint32_t bits = table[c * 256 + memory[part.from_at + uint64_t{c} * part.units + unit]];
    const uint64_t element = part.interleaved != 0 ? uint64_t{unit} * 3 + c : uint64_t{c} * part.units + unit;
    uint8_t* const to = outputs + part.to_at + element * part.element_bytes;
    if (part.element_bytes == 4) {
      *reinterpret_cast<uint32_t*>(to) = bits;
    } else if (part.element_bytes == 2) {
      *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(bits);
    } else {
      *to = static_cast<uint8_t>(bits);
    }
  }
}

// A stage's part and function, for whoever makes loops or grids of them. `outputs` is StageLaunch's.
template <GpuStage Stage, class PartType, auto Run>
struct GpuKernel {
  using Part = PartType;
  static constexpr GpuStage stage = Stage;
  PENSTOCK_HOST_DEVICE static void run(uint8_t* memory, uint8_t* outputs, const Part& part, uint32_t unit) {
    if constexpr (Stage == GpuStage::finish) {
      Run(memory, outputs, part, unit);
    } else {
      Run(memory, part, unit);
    }
  }
};

// Calls visit.operator()<Kernel>() with the stage's.
template <class Visit>
void with_kernel(GpuStage stage, const Visit& visit) {
  switch (stage) {
    case GpuStage::entropy:
      return visit.template operator()<GpuKernel<GpuStage::entropy, EntropyPart, entropy_mcu_run>>();
    case GpuStage::sync: return visit.template operator()<GpuKernel<GpuStage::sync, SyncPart, sync_subsequences>>();
    case GpuStage::sum: return visit.template operator()<GpuKernel<GpuStage::sum, SumPart, sum_subsequences>>();
    case GpuStage::write: return visit.template operator()<GpuKernel<GpuStage::write, WritePart, write_blocks>>();
    case GpuStage::inverse:
      return visit.template operator()<GpuKernel<GpuStage::inverse, InversePart, inverse_block>>();
    case GpuStage::colour: return visit.template operator()<GpuKernel<GpuStage::colour, ColourPart, colour_pixel>>();
    case GpuStage::across: return visit.template operator()<GpuKernel<GpuStage::across, AcrossPart, across_pixel>>();
    case GpuStage::down: return visit.template operator()<GpuKernel<GpuStage::down, DownPart, down_pixel>>();
    case GpuStage::place: return visit.template operator()<GpuKernel<GpuStage::place, PlacePart, place_pixel>>();
    case GpuStage::point: return visit.template operator()<GpuKernel<GpuStage::point, PointPart, point_pixel>>();
    case GpuStage::tally: return visit.template operator()<GpuKernel<GpuStage::tally, TallyPart, tally_pixels_of>>();
    case GpuStage::tone: return visit.template operator()<GpuKernel<GpuStage::tone, TonePart, tone_entry>>();
    case GpuStage::smooth: return visit.template operator()<GpuKernel<GpuStage::smooth, SmoothPart, smooth_pixel>>();
    case GpuStage::blur_across:
      return visit.template operator()<GpuKernel<GpuStage::blur_across, BlurPart, blur_pixel_across>>();
    case GpuStage::blur_down:
      return visit.template operator()<GpuKernel<GpuStage::blur_down, BlurPart, blur_pixel_down>>();
    case GpuStage::warp: return visit.template operator()<GpuKernel<GpuStage::warp, WarpPart, warp_pixel>>();
    case GpuStage::gather: return visit.template operator()<GpuKernel<GpuStage::gather, GatherPart, gather_pixel>>();
    case GpuStage::finish: return visit.template operator()<GpuKernel<GpuStage::finish, FinishPart, finish_pixel>>();
    case GpuStage::hash: return visit.template operator()<GpuKernel<GpuStage::hash, HashPart, hash_block>>();
    case GpuStage::digest: return visit.template operator()<GpuKernel<GpuStage::digest, DigestPart, digest_image>>();
  }
}

}  // namespace penstock
