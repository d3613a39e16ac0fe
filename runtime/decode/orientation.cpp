#include "runtime/decode/orientation.h"

#include <cstring>
#include <vector>

#include "runtime/decode/formats/png_decoder.h"
#include "runtime/decode/formats/tiff_header.h"
#include "runtime/decode/header_reader.h"

namespace penstock {
namespace {

uint8_t orientation_of_tiff(EncodedView block) {
  const unsigned value = orientation_in_tiff(block);
  return static_cast<uint8_t>(value >= 2 ? value : 1);
}

// EXIF's block as JPEG and WebP files hold it: Pillow takes one "Exif\0\0" away, where it is.
uint8_t orientation_of_block(EncodedView block) {
  const bool named = block.size() >= 6 && std::memcmp(block.data(), "Exif\0\0", 6) == 0;
  return orientation_of_tiff(named ? block.subspan(6) : block);
}

uint8_t in_jpeg(EncodedView bytes) {
  HeaderReader in(bytes, 2);
  while (in.has(2)) {
    unsigned marker = in.u8();
    if (marker != 0xFF) continue;
    while (marker == 0xFF && in.has(1)) marker = in.u8();
    if (marker == 0xDA || marker == 0xD9) break;
    if (marker == 0 || marker == 0x01 || (marker >= 0xD0 && marker <= 0xD8)) continue;
    if (!in.has(2)) break;
    const size_t length = in.u16();
    if (length < 2) continue;
    if (!in.has(length - 2)) break;
    const EncodedView segment = bytes.subspan(in.at(), length - 2);
    if (marker == 0xE1 && segment.size() >= 5 && std::memcmp(segment.data(), "Exif\0", 5) == 0) {
      return orientation_of_block(segment);
    }
    in.skip(length - 2);
  }
  return 1;
}

uint8_t in_png(EncodedView bytes, bool also_text) {
  HeaderReader in(bytes, 8);
  while (in.has(12)) {
    const size_t length = in.u32();
    const uint32_t type = in.u32();
    if (!in.has(length)) break;
    if (type == 0x65584966U) return orientation_of_tiff(bytes.subspan(in.at(), length));  // eXIf
    if (type == 0x49454E44U) break;                                                       // IEND
    if (!in.skip(length + 4)) break;
  }
  if (!also_text) return 1;
  const std::vector<std::byte> profile = png_exif_profile(bytes);
  return profile.empty() ? uint8_t{1} : orientation_of_block(profile);
}

uint8_t in_webp(EncodedView bytes) {
  HeaderReader in(bytes, 12);
  while (in.has(8)) {
    const uint32_t type = in.u32();
    const size_t length = in.le32();
    if (!in.has(length)) break;
    if (type == 0x45584946U) return orientation_of_block(bytes.subspan(in.at(), length));  // EXIF
    if (!in.skip(length + length % 2)) break;
  }
  return 1;
}

}  // namespace

uint8_t exif_orientation(EncodedView bytes, ImageFormat format, ColourConversion as) {
  const bool pillow = as == ColourConversion::pillow;
  switch (format) {
    case ImageFormat::jpeg: return in_jpeg(bytes);
    case ImageFormat::png: return in_png(bytes, pillow);
    case ImageFormat::webp: return pillow ? in_webp(bytes) : uint8_t{1};
    default: return 1;
  }
}

Box stored_box(const Box& box, const ImageHeader& header) {
  const int right = header.width - box.x - box.width;  // columns on the other side
  const int below = header.height - box.y - box.height;
  switch (header.orientation) {
    case 2: return {right, box.y, box.width, box.height};
    case 3: return {right, below, box.width, box.height};
    case 4: return {box.x, below, box.width, box.height};
    case 5: return {box.y, box.x, box.height, box.width};
    case 6: return {box.y, right, box.height, box.width};
    case 7: return {below, right, box.height, box.width};
    case 8: return {below, box.x, box.height, box.width};
    default: return box;
  }
}

void turn(const PixelView& stored, uint8_t orientation, PixelBuffer& oriented) {
  const bool swaps = orientation >= 5;
  const int width = swaps ? stored.height : stored.width;
  const int height = swaps ? stored.width : stored.height;
  // Which way the file's columns and rows run in the oriented image.
  const bool mirror_x = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
  const bool mirror_y = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
  oriented.resize(width, height);
  for (int y = 0; y < height; ++y) {
    uint8_t* out = oriented.row(y);
    for (int x = 0; x < width; ++x, out += 3) {
      int column = swaps ? y : x;
      int row = swaps ? x : y;
      if (mirror_x) column = stored.width - 1 - column;
      if (mirror_y) row = stored.height - 1 - row;
      std::memcpy(out, stored.row(row) + static_cast<size_t>(column) * 3, 3);
    }
  }
}

}  // namespace penstock
