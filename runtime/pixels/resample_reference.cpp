#include "runtime/pixels/resample_reference.h"

#include <cstring>

#include "runtime/pixels/resample_math.h"
#include "runtime/pixels/resample_taps.h"

namespace penstock {

std::vector<uint8_t> resample_reference(const ResampleGeometry& g, const PixelView& image, const Box& window) {
  const auto out_w = static_cast<size_t>(g.out_width);
  const auto in_h = static_cast<size_t>(g.in_height);
  // Horizontal pass over every row; the size decides whether there is one.
  std::vector<uint8_t> wide(out_w * in_h * 3);
  Taps taps;
  if (!g.resizes_columns()) {
    for (int y = 0; y < g.in_height; ++y)
      std::memcpy(&wide[static_cast<size_t>(y) * out_w * 3], image.row(y), out_w * 3);
  } else {
    compute_taps(g.in_width, g.out_width, g.filter, 0, g.out_width, taps, g.columns);
    for (int y = 0; y < g.in_height; ++y) {
      for (int x = 0; x < g.out_width; ++x) {
        for (int c = 0; c < 3; ++c) {
          wide[(static_cast<size_t>(y) * out_w + static_cast<size_t>(x)) * 3 + static_cast<size_t>(c)] =
              resample_value(image.row(y) + taps.start[static_cast<size_t>(x)] * 3 + c, 3, taps.coefficients(x),
                             taps.size[static_cast<size_t>(x)]);
        }
      }
    }
  }
  std::vector<uint8_t> result(static_cast<size_t>(window.width) * static_cast<size_t>(window.height) * 3);
  if (g.resizes_rows()) compute_taps(g.in_height, g.out_height, g.filter, 0, g.out_height, taps, g.rows);
  size_t at = 0;
  for (int y = window.y; y < window.y + window.height; ++y) {
    for (int x = window.x * 3; x < (window.x + window.width) * 3; ++x) {
      const auto column = static_cast<size_t>(x);
      const auto row = static_cast<size_t>(y);
      result[at++] = !g.resizes_rows()
                         ? wide[row * out_w * 3 + column]
                         : resample_value(&wide[static_cast<size_t>(taps.start[row]) * out_w * 3 + column], out_w * 3,
                                          taps.coefficients(y), taps.size[row]);
    }
  }
  return result;
}

}  // namespace penstock
