// read_header: what the first bytes say, without a decoding library.
//
// The walk over JPEG markers is libjpeg's (jdmarker.c: bytes that are no marker are skipped, fill bytes too), as far as
// the frame header. Where the two disagree, on bytes that are no image, Decoder notices that the sizes differ.
#include <cstdio>
#include <cstring>
#include <utility>

#include "runtime/decode/decoder.h"
#include "runtime/decode/formats/bmp_decoder.h"
#include "runtime/decode/formats/gif_decoder.h"
#include "runtime/decode/formats/pnm_decoder.h"
#include "runtime/decode/formats/tiff_header.h"
#include "runtime/decode/formats/webp_decoder.h"
#include "runtime/decode/header_reader.h"
#include "runtime/decode/orientation.h"

namespace penstock {

SampleStatus check_size(uint64_t width, uint64_t height, const DecodeLimits& limits, ImageHeader& header) {
  const std::string size = std::to_string(width) + "x" + std::to_string(height);
  if (width == 0 || height == 0) return SampleStatus::bad("image of size " + size);
  if (width > static_cast<uint64_t>(limits.max_side) || height > static_cast<uint64_t>(limits.max_side)) {
    return SampleStatus::bad("image of " + size + " pixels: sides over the limit of " +
                             std::to_string(limits.max_side) + " (limits.max_side)");
  }
  if (static_cast<int64_t>(width * height) > limits.max_pixels) {
    return SampleStatus::bad("image of " + size + " pixels: over the limit of " + std::to_string(limits.max_pixels) +
                             " (limits.max_pixels)");
  }
  header.width = static_cast<int>(width);
  header.height = static_cast<int>(height);
  return SampleStatus::good();
}

namespace {

std::string hex_of(EncodedView bytes) {
  std::string text;
  for (size_t i = 0; i < bytes.size() && i < 8; ++i) {
    char two[4];
    std::snprintf(two, sizeof two, i == 0 ? "%02x" : " %02x", std::to_integer<unsigned>(bytes[i]));
    text += two;
  }
  return text;
}

SampleStatus jpeg_frame(HeaderReader& in, unsigned marker, const DecodeLimits& limits, ImageHeader& header) {
  if (marker == 0xC3 || marker == 0xC7 || marker == 0xCB || marker == 0xCF) {
    return SampleStatus::bad("lossless JPEG is not supported");
  }
  if (marker == 0xC5 || marker == 0xC6 || marker == 0xCD || marker == 0xCE) {
    return SampleStatus::bad("hierarchical JPEG is not supported");
  }
  if (!in.has(8)) return SampleStatus::bad("premature end of data in the JPEG header");
  const unsigned length = in.u16();
  const unsigned precision = in.u8();
  const unsigned height = in.u16();
  const unsigned width = in.u16();
  const unsigned components = in.u8();
  if (precision != 8) return SampleStatus::bad(std::to_string(precision) + "-bit JPEG is not supported");
  if (components != 1 && components != 3 && components != 4) {
    return SampleStatus::bad("JPEG of " + std::to_string(components) + " components is not supported");
  }
  if (length != 8 + 3 * components) return SampleStatus::bad("wrong length of the JPEG frame header");
  return check_size(width, height, limits, header);
}

SampleStatus read_jpeg_header(EncodedView bytes, const DecodeLimits& limits, ImageHeader& header) {
  HeaderReader in(bytes);
  in.skip(2);  // SOI
  while (true) {
    unsigned byte = 0;
    do {
      if (!in.has(1)) return SampleStatus::bad("premature end of data in the JPEG header");
      byte = in.u8();
    } while (byte != 0xFF);
    while (byte == 0xFF) {
      if (!in.has(1)) return SampleStatus::bad("premature end of data in the JPEG header");
      byte = in.u8();
    }
    if (byte == 0 || byte == 0x01 || (byte >= 0xD0 && byte <= 0xD7)) continue;  // stuffing, TEM, RSTn
    if (byte >= 0xC0 && byte <= 0xCF && byte != 0xC4 && byte != 0xC8 && byte != 0xCC) {
      return jpeg_frame(in, byte, limits, header);
    }
    if (byte == 0xD8) return SampleStatus::bad("second start of image in the JPEG header");
    if (byte == 0xD9) return SampleStatus::bad("JPEG file without an image");
    if (byte == 0xDA) return SampleStatus::bad("JPEG scan before the frame header");
    if (!in.has(2)) return SampleStatus::bad("premature end of data in the JPEG header");
    const unsigned length = in.u16();
    if (length < 2) continue;  // nothing to skip; which markers may be so, libjpeg says
    if (!in.skip(length - 2)) return SampleStatus::bad("premature end of data in the JPEG header");
  }
}

SampleStatus read_png_header(EncodedView bytes, const DecodeLimits& limits, ImageHeader& header) {
  HeaderReader in(bytes);
  if (!in.has(33)) return SampleStatus::bad("premature end of data in the PNG header");
  in.skip(8);
  const uint32_t length = in.u32();
  const uint32_t type = in.u32();
  if (length != 13 || type != 0x49484452U) return SampleStatus::bad("PNG file does not begin with its header chunk");
  const uint32_t width = in.u32();
  const uint32_t height = in.u32();
  const unsigned depth = in.u8();
  const unsigned colour = in.u8();
  const bool any = depth == 8 || depth == 16;
  const bool small = depth == 1 || depth == 2 || depth == 4;
  const bool valid = colour == 0   ? any || small
                     : colour == 3 ? depth == 8 || small
                                   : any && (colour == 2 || colour == 4 || colour == 6);
  if (!valid) {
    return SampleStatus::bad("PNG of colour type " + std::to_string(colour) + " with " + std::to_string(depth) +
                             " bits does not exist");
  }
  return check_size(width, height, limits, header);
}

// What the first bytes say, and nothing else: never the file's name, never a library's own guess.
ImageFormat format_of(EncodedView bytes) {
  const auto starts = [&](const char* text, size_t size, size_t at = 0) {
    return bytes.size() >= at + size && std::memcmp(bytes.data() + at, text, size) == 0;
  };
  if (starts("\xFF\xD8\xFF", 3)) return ImageFormat::jpeg;
  if (starts("\x89PNG\r\n\x1A\n", 8)) return ImageFormat::png;
  if (starts("GIF87a", 6) || starts("GIF89a", 6)) return ImageFormat::gif;
  if (starts("BM", 2)) return ImageFormat::bmp;
  if (starts("RIFF", 4) && (starts("WEBPVP8 ", 8, 8) || starts("WEBPVP8L", 8, 8) || starts("WEBPVP8X", 8, 8))) {
    return ImageFormat::webp;
  }
  if (starts("II\x2A\0", 4) || starts("MM\0\x2A", 4) || starts("II\x2B\0", 4) || starts("MM\x2A\0", 4) ||
      starts("II\0\x2A", 4)) {
    return ImageFormat::tiff;
  }
  if (bytes.size() >= 2 && starts("P", 1) && bytes[1] >= std::byte{'1'} && bytes[1] <= std::byte{'6'}) {
    return ImageFormat::pnm;
  }
  return ImageFormat::unknown;
}

SampleStatus read_sizes(EncodedView bytes, const DecodeLimits& limits, ImageHeader& header) {
  switch (header.format) {
    case ImageFormat::jpeg: return read_jpeg_header(bytes, limits, header);
    case ImageFormat::png: return read_png_header(bytes, limits, header);
    case ImageFormat::pnm: return read_pnm_header(bytes, limits, header);
    case ImageFormat::bmp: return read_bmp_header(bytes, limits, header);
    case ImageFormat::gif: return read_gif_header(bytes, limits, header);
    case ImageFormat::webp: return read_webp_header(bytes, limits, header);
    case ImageFormat::tiff: return read_tiff_header(bytes, limits, header);
    case ImageFormat::unknown: break;
  }
  return SampleStatus::bad("not a JPEG, PNG, GIF, BMP, PNM, WebP or TIFF file (starts with " + hex_of(bytes) + ")");
}

}  // namespace

SampleStatus read_header(EncodedView bytes, const DecodeLimits& limits, ImageHeader& header,
                         const HeaderOptions& options) {
  header = ImageHeader{};
  if (bytes.empty()) return SampleStatus::bad("empty file");
  if (static_cast<int64_t>(bytes.size()) > limits.max_encoded_bytes) {
    return SampleStatus::bad("file of " + std::to_string(bytes.size()) + " bytes: over the limit of " +
                             std::to_string(limits.max_encoded_bytes) + " (limits.max_encoded_bytes)");
  }
  header.format = format_of(bytes);
  const SampleStatus status = read_sizes(bytes, limits, header);
  if (!status.ok()) return status;
  header.conversion = options.conversion;
  if (options.exif_orientation && header.format != ImageFormat::tiff) {
    header.orientation = exif_orientation(bytes, header.format, options.conversion);
  }
  if (header.swaps_sides()) std::swap(header.width, header.height);
  return status;
}

}  // namespace penstock
