// JPEG files with an EXIF orientation, and the plain way of turning pixels, for tests.
//
//   std::vector<std::byte> file = with_orientation(jpeg, 6);
//   std::vector<uint8_t> oriented = turned(rgb, width, height, 6);     // 5 to 8: height and width change places
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace penstock_test {

inline std::vector<std::byte> with_orientation(const std::vector<std::byte>& jpeg, int orientation) {
  static constexpr unsigned char segment[] = {0xFF, 0xE1, 0, 34, 'E', 'x', 'i', 'f', 0, 0,    'M', 'M',
                                              0,    42,   0, 0,  0,   8,   0,   1,   1, 0x12, 0,   3,
                                              0,    0,    0, 1,  0,   0,   0,   0,   0, 0,    0,   0};
  std::vector<std::byte> file(jpeg.begin(), jpeg.begin() + 2);
  for (const unsigned char c : segment) file.push_back(static_cast<std::byte>(c));
  file[2 + 29] = static_cast<std::byte>(orientation);
  file.insert(file.end(), jpeg.begin() + 2, jpeg.end());
  return file;
}

// Pillow's transpositions by their definitions: for each pixel of the file, where it goes.
inline std::vector<uint8_t> turned(const std::vector<uint8_t>& rgb, int width, int height, int orientation) {
  const bool swaps = orientation >= 5 && orientation <= 8;
  const int out_width = swaps ? height : width;
  std::vector<uint8_t> out(rgb.size());
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      int to_x = x;
      int to_y = y;
      const int across = width - 1 - x;
      const int down = height - 1 - y;
      switch (orientation) {
        case 2: to_x = across; break;
        case 3:
          to_x = across;
          to_y = down;
          break;
        case 4: to_y = down; break;
        case 5:
          to_x = y;
          to_y = x;
          break;
        case 6:
          to_x = down;
          to_y = x;
          break;
        case 7:
          to_x = down;
          to_y = across;
          break;
        case 8:
          to_x = y;
          to_y = across;
          break;
        default: break;
      }
      for (int c = 0; c < 3; ++c) {
        out[(static_cast<size_t>(to_y) * static_cast<size_t>(out_width) + static_cast<size_t>(to_x)) * 3 +
            static_cast<size_t>(c)] =
            rgb[(static_cast<size_t>(y) * static_cast<size_t>(width) + static_cast<size_t>(x)) * 3 +
                static_cast<size_t>(c)];
      }
    }
  }
  return out;
}

}  // namespace penstock_test
