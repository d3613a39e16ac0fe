#include "runtime/pixels/blur.h"

#include <algorithm>
#include <cstring>

#include "runtime/pixels/blur_math.h"
#include "runtime/pixels/draw_math.h"

namespace penstock {

namespace {

// `padded` is the row's bytes as floats with `half` mirrored pixels on either side.
void blur_row(const float* padded, size_t bytes, const GaussianWeights& weights, float* out) {
  const float* middle = padded + 3 * static_cast<size_t>(weights.half);
  for (size_t i = 0; i < bytes; ++i) out[i] = weights.weight[0] * middle[i];
  for (int k = 1; k <= weights.half; ++k) {
    const float weight = weights.weight[static_cast<size_t>(k)];
    const float* before = middle - 3 * static_cast<size_t>(k);
    const float* after = middle + 3 * static_cast<size_t>(k);
    for (size_t i = 0; i < bytes; ++i) out[i] = blur_add(out[i], weight, before[i], after[i]);
  }
}

void pad_row(const uint8_t* row, int width, int half, float* padded) {
  for (int x = -half; x < width + half; ++x, padded += 3) {
    const uint8_t* from = row + reflected(x, width) * 3;
    for (int c = 0; c < 3; ++c) padded[c] = static_cast<float>(from[c]);
  }
}

}  // namespace

GaussianWeights gaussian_weights(int size, double sigma) {
  GaussianWeights weights{.half = size / 2};
  double values[GaussianWeights::kMaxSize / 2 + 1];
  double sum = 0;
  for (int k = weights.half; k >= 0; --k) {
    const double x = k / sigma;
    values[k] = draw_exp(-0.5 * (x * x));
    sum += k == 0 ? values[k] : 2 * values[k];
  }
  for (int k = 0; k <= weights.half; ++k) {
    const double share = values[k] / sum;
    // Denormal floats are slow, and nothing this small reaches a byte.
    weights.weight[static_cast<size_t>(k)] = share < 0x1p-60 ? 0.0F : static_cast<float>(share);
  }
  return weights;
}

void gaussian_blur(PixelBuffer& image, const GaussianWeights& across, const GaussianWeights& down,
                   PaintScratch& scratch) {
  const int width = image.width(), height = image.height();
  const size_t bytes = image.row_bytes();
  const auto kept = static_cast<size_t>(2 * down.half + 1);  // rows that one output row needs
  const size_t padded_floats = bytes + 6 * static_cast<size_t>(across.half);
  scratch.bytes.resize((padded_floats + (kept + 1) * bytes) * sizeof(float));
  auto* padded = reinterpret_cast<float*>(scratch.bytes.data());
  float* sums = padded + padded_floats;
  float* rows = sums + bytes;
  const auto row_at = [&](int y) { return rows + static_cast<size_t>(y) % kept * bytes; };
  int next = 0;  // the first row not blurred across yet
  for (int y = 0; y < height; ++y) {
    // Row y is overwritten below, once all that need it have it in `rows`.
    for (; next < height && next <= y + down.half; ++next) {
      pad_row(image.row(next), width, across.half, padded);
      blur_row(padded, bytes, across, row_at(next));
    }
    const float* middle = row_at(y);
    for (size_t i = 0; i < bytes; ++i) sums[i] = down.weight[0] * middle[i];
    for (int k = 1; k <= down.half; ++k) {
      const float weight = down.weight[static_cast<size_t>(k)];
      const float* above = row_at(reflected(y - k, height));
      const float* below = row_at(reflected(y + k, height));
      for (size_t i = 0; i < bytes; ++i) sums[i] = blur_add(sums[i], weight, above[i], below[i]);
    }
    uint8_t* out = image.row(y);
    for (size_t i = 0; i < bytes; ++i) out[i] = blur_round(sums[i]);
  }
}

}  // namespace penstock
