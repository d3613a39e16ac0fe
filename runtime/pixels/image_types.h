// Plain types that operations on pixels, and transforms made of them, have in common: sizes, fills, what an image is of
// its sample, memory that a thread keeps.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/decode/image.h"

namespace penstock {

struct Size {
  int width = 0;
  int height = 0;

  friend bool operator==(const Size&, const Size&) = default;
};

using Fill = std::array<uint8_t, 3>;

// What an image is of its sample. Both images of a pair have the role `image`.
enum class ImageRole : uint8_t { image, mask };

// What stands where an image has nothing: a colour, and in masks a class id.
struct Fills {
  Fill image{0, 0, 0};
  uint8_t mask = 0;

  constexpr Fill of(ImageRole role) const noexcept { return role == ImageRole::mask ? Fill{mask, mask, mask} : image; }
};

// Memory that a thread keeps from one paint() to the next; contents are undefined at its start. A transform that makes
// a new image writes it to `buffer` and swaps the two.
struct PaintScratch {
  PixelBuffer buffer;
  std::vector<int32_t> ints;
  std::vector<std::byte> bytes;
  // For transforms that are made of other operations, which take the ones above.
  PixelBuffer copy;
  std::vector<float> floats;
};

}  // namespace penstock
