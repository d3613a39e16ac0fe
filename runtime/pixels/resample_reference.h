// Resampling in straight loops after Pillow's algorithm: the yardstick for the vector code, and readable beside it.
//
//   std::vector<uint8_t> rgb = resample_reference(geometry, whole_image_view, Box{16, 16, 224, 224});
//
// Takes the whole input and gives interleaved RGB of the window. Allocates freely; for tests and for comparison only.
// Thread-safety: a pure function.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/pixels/resample.h"

namespace penstock {

std::vector<uint8_t> resample_reference(const ResampleGeometry& geometry, const PixelView& image, const Box& window);

}  // namespace penstock
