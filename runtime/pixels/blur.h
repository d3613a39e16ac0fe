// torchvision's Gaussian blur of a whole image; blur_math.h says how it is summed.
//
//   gaussian_blur(image, gaussian_weights(23, 1.5), gaussian_weights(23, 1.5), scratch);
//
// In place, with the rows of one kernel height in the scratch. Thread-safety: pure functions on the caller's image and
// scratch. Failure: none, but for memory.
#pragma once

#include <array>

#include "runtime/pixels/image_types.h"

namespace penstock {

// Weights of the middle and of each distance from it; they add up to 1 over the whole kernel.
struct GaussianWeights {
  static constexpr int kMaxSize = 255;
  int half = 0;
  std::array<float, kMaxSize / 2 + 1> weight{1};
};

// `size` is odd and at most max_size, `sigma` above 0 in pixels.
GaussianWeights gaussian_weights(int size, double sigma);

void gaussian_blur(PixelBuffer& image, const GaussianWeights& across, const GaussianWeights& down,
                   PaintScratch& scratch);

}  // namespace penstock
