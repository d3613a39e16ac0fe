// What is beside an image: the rules by which padding continues it (NumPy's np.pad, which torchvision calls).
//
//   border_index(-1, 5, Border::reflect)      // 1: mirrored at the centre of the first pixel
//   cut_with_border(image, columns, rows, scratch);   // out[y][x] = image[rows[y]][columns[x]]
//
// constant  a colour; geometry alone (OpList::crop with a fill), so it is none of this file's
// edge      aaaa | abcd | dddd          reflect   dcb | abcd | cba          symmetric   dcba | abcd | dcba
// Thread-safety: pure functions.
#pragma once

#include <string>
#include <vector>

#include "runtime/pixels/image_types.h"

namespace penstock {

enum class Border : uint8_t { constant, edge, reflect, symmetric };

Border border_of(const std::string& padding_mode);

// The pixel of an axis of n that stands at `i`, which may lie outside. Not for constant.
int border_index(int i, int n, Border border) noexcept;

// `image` becomes the pixels at columns x rows of it.
void cut_with_border(PixelBuffer& image, const std::vector<int>& columns, const std::vector<int>& rows,
                     PaintScratch& scratch);

}  // namespace penstock
