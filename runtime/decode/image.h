// Images before and after decoding: headers, boxes, pixel buffers, limits.
//
//   PixelBuffer buffer;
//   buffer.resize(header.width, header.height);      // contents are undefined
//   const PixelView view{buffer.row(0), buffer.width(), buffer.height(), buffer.row_bytes()};
//
// Thread-safety: values; a PixelBuffer belongs to one thread at a time. Ownership: a PixelBuffer owns its memory;
//   PixelView and EncodedView are views of somebody else's.
// Failure: resize() throws Error(runtime) where there is no memory for it (base/aligned_bytes.h); nothing else fails.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "runtime/base/aligned_bytes.h"
#include "runtime/base/error.h"

namespace penstock {

enum class ImageFormat : uint8_t { unknown = 0, jpeg = 1, png = 2, pnm = 3, bmp = 4, gif = 5, webp = 6, tiff = 7 };

// How pixels that are not three bytes of red, green and blue become so: CMYK, 16 bits, alpha. As Pillow's convert("RGB")
// does it, or as OpenCV's imread(IMREAD_COLOR).
enum class ColourConversion : uint8_t { pillow = 0, opencv = 1 };

// What the file's header says. Draws need no more than this, so they are made before anything is decoded.
struct ImageHeader {
  ImageFormat format = ImageFormat::unknown;
  int width = 0;  // of the oriented image: the file's height where the orientation is 5 to 8
  int height = 0;
  // EXIF's 1 to 8: how the file's pixels have to be turned. 1 unless asked for; TIFF is always turned, as by Pillow.
  uint8_t orientation = 1;
  ColourConversion conversion = ColourConversion::pillow;  // as it was asked for

  bool swaps_sides() const noexcept { return orientation >= 5; }
};

// What read_header does beyond the sizes.
struct HeaderOptions {
  bool exif_orientation = false;  // turn images: as PIL.ImageOps.exif_transpose does, or as imread
  ColourConversion conversion = ColourConversion::pillow;
};

// A rectangle in pixels; x and y may be negative and the far edges may lie outside where a transform pads.
struct Box {
  int x = 0;
  int y = 0;
  int width = 0;
  int height = 0;

  friend bool operator==(const Box&, const Box&) = default;
  bool contains(const Box& b) const noexcept {
    return b.x >= x && b.y >= y && b.x + b.width <= x + width && b.y + b.height <= y + height;
  }
};

// What is refused before memory is taken. Every limit is checked against the header, or while scanning, never after
// the pixels have been allocated.
struct DecodeLimits {
  int64_t max_pixels = 178'956'970;  // Pillow's error threshold: twice its warning at 89,478,485
  int64_t max_encoded_bytes = int64_t{256} << 20;
  int max_side = 65500;    // libjpeg's JPEG_MAX_DIMENSION
  int max_scans = 100;     // progressive bombs: a thousand scans of a large image
  int max_warnings = 100;  // "extraneous bytes", "corrupt data": harmless ones pass, floods do not
  // a text or bytes field of a sample: every place in a chunk buffer or batch buffer has so much
  int64_t max_field_bytes = 64 << 10;

  friend bool operator==(const DecodeLimits&, const DecodeLimits&) = default;
};

// Which of several equal ways decoders take. Results never depend on it; tests and measurements do.
struct DecoderOptions {
  bool own_jpeg = true;  // our own decoder; off: libjpeg-turbo decodes every JPEG file
  // MCUs between the points of an index that is learned; 0: learned_interval() (side_index.h)
  int learned_interval = 0;

  // The default, changed by PENSTOCK_DECODE=library in the environment: own_jpeg off.
  static DecoderOptions from_environment();
};

// How many images went which way.
struct DecodeCounts {
  int64_t own_jpeg = 0;
  int64_t indexed_jpeg = 0;  // of these, those decoded by an index
  int64_t library_jpeg = 0;
};

// Interleaved RGB, 8 bits, row after row: what decoders write and resampling reads. It grows, and shrinks only by
// let_large_go(), so one buffer per thread serves all images. The memory is 64-byte aligned and has `kPadding` readable
// bytes past its end, so vector loads may overrun. Move-only owner.
class PixelBuffer {
 public:
  static constexpr size_t kPadding = 64;

  // Makes room for width x height RGB pixels; contents are undefined afterwards.
  void resize(int width, int height) {
    width_ = width;
    height_ = height;
    data_.get(row_bytes() * static_cast<size_t>(height) + kPadding);
  }
  int width() const noexcept { return width_; }
  int height() const noexcept { return height_; }
  size_t row_bytes() const noexcept { return static_cast<size_t>(width_) * 3; }
  uint8_t* row(int y) noexcept { return data_.data() + static_cast<size_t>(y) * row_bytes(); }
  const uint8_t* row(int y) const noexcept { return data_.data() + static_cast<size_t>(y) * row_bytes(); }
  size_t capacity_bytes() const noexcept { return data_.capacity(); }
  void let_large_go() noexcept { data_.let_large_go(); }

 private:
  AlignedBytes data_;
  int width_ = 0;
  int height_ = 0;
};

// A view of interleaved RGB pixels in someone else's buffer.
struct PixelView {
  const uint8_t* data = nullptr;
  int width = 0;
  int height = 0;
  size_t row_bytes = 0;  // may exceed width * 3

  const uint8_t* row(int y) const noexcept { return data + static_cast<size_t>(y) * row_bytes; }
};

using EncodedView = std::span<const std::byte>;

}  // namespace penstock
