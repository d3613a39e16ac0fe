#include "runtime/pixels/border.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace penstock {

Border border_of(const std::string& padding_mode) {
  if (padding_mode == "edge") return Border::edge;
  if (padding_mode == "reflect") return Border::reflect;
  if (padding_mode == "symmetric") return Border::symmetric;
  return Border::constant;
}

int border_index(int i, int n, Border border) noexcept {
  if (border == Border::edge || n == 1) return std::clamp(i, 0, n - 1);
  const int period = border == Border::reflect ? 2 * (n - 1) : 2 * n;
  i %= period;
  if (i < 0) i += period;
  if (i < n) return i;
  return border == Border::reflect ? period - i : period - 1 - i;
}

void cut_with_border(PixelBuffer& image, const std::vector<int>& columns, const std::vector<int>& rows,
                     PaintScratch& scratch) {
  PixelBuffer& out = scratch.buffer;
  out.resize(static_cast<int>(columns.size()), static_cast<int>(rows.size()));
  for (size_t y = 0; y < rows.size(); ++y) {
    const uint8_t* from = image.row(rows[y]);
    uint8_t* to = out.row(static_cast<int>(y));
    for (const int x : columns) {
      std::memcpy(to, from + static_cast<size_t>(x) * 3, 3);
      to += 3;
    }
  }
  std::swap(image, out);
}

}  // namespace penstock
