// read_header: what the first bytes say, without a decoding library.
//
// The walk over JPEG markers is libjpeg's (jdmarker.c: bytes that are no marker are skipped, fill bytes too), as far as
// the frame header. Where the two disagree, on bytes that are no image, Decoder notices that the sizes differ.
#include <cstdio>
#include <cstring>

#include "runtime/decode/decoder.h"

namespace penstock {
namespace {

class Reader {
 public:
  explicit Reader(EncodedView bytes) : bytes_(bytes) {}
  bool has(size_t n) const { return bytes_.size() - at_ >= n; }
  unsigned u8() { return std::to_integer<unsigned>(bytes_[at_++]); }
  unsigned u16() {
    const unsigned high = u8();
    return high << 8 | u8();
  }
  uint32_t u32() {
    const uint32_t high = u16();
    return high << 16 | u16();
  }
  bool skip(size_t n) {
    if (!has(n)) return false;
    at_ += n;
    return true;
  }

 private:
  EncodedView bytes_;
  size_t at_ = 0;
};

std::string hex_of(EncodedView bytes) {
  std::string text;
  for (size_t i = 0; i < bytes.size() && i < 8; ++i) {
    char two[4];
    std::snprintf(two, sizeof two, i == 0 ? "%02x" : " %02x", std::to_integer<unsigned>(bytes[i]));
    text += two;
  }
  return text;
}

Verdict check_size(uint32_t width, uint32_t height, const DecodeLimits& limits, ImageHeader& header) {
  const std::string size = std::to_string(width) + "x" + std::to_string(height);
  if (width == 0 || height == 0) return Verdict::bad("image of size " + size);
  if (width > static_cast<uint32_t>(limits.max_side) || height > static_cast<uint32_t>(limits.max_side)) {
    return Verdict::bad("image of " + size + " pixels: sides over the limit of " + std::to_string(limits.max_side));
  }
  const int64_t pixels = int64_t{width} * int64_t{height};
  if (pixels > limits.max_pixels) {
    return Verdict::bad("image of " + size + " pixels: over the limit of " + std::to_string(limits.max_pixels));
  }
  header.width = static_cast<int>(width);
  header.height = static_cast<int>(height);
  return Verdict::good();
}

Verdict jpeg_frame(Reader& in, unsigned marker, const DecodeLimits& limits, ImageHeader& header) {
  if (marker == 0xC3 || marker == 0xC7 || marker == 0xCB || marker == 0xCF) {
    return Verdict::bad("lossless JPEG is not supported");
  }
  if (marker == 0xC5 || marker == 0xC6 || marker == 0xCD || marker == 0xCE) {
    return Verdict::bad("hierarchical JPEG is not supported");
  }
  if (!in.has(8)) return Verdict::bad("premature end of data in the JPEG header");
  const unsigned length = in.u16();
  const unsigned precision = in.u8();
  const unsigned height = in.u16();
  const unsigned width = in.u16();
  const unsigned components = in.u8();
  if (precision != 8) return Verdict::bad(std::to_string(precision) + "-bit JPEG is not supported");
  if (components != 1 && components != 3 && components != 4) {
    return Verdict::bad("JPEG of " + std::to_string(components) + " components is not supported");
  }
  if (length != 8 + 3 * components) return Verdict::bad("wrong length of the JPEG frame header");
  return check_size(width, height, limits, header);
}

Verdict read_jpeg_header(EncodedView bytes, const DecodeLimits& limits, ImageHeader& header) {
  Reader in(bytes);
  in.skip(2);  // SOI
  while (true) {
    unsigned byte = 0;
    do {
      if (!in.has(1)) return Verdict::bad("premature end of data in the JPEG header");
      byte = in.u8();
    } while (byte != 0xFF);
    while (byte == 0xFF) {
      if (!in.has(1)) return Verdict::bad("premature end of data in the JPEG header");
      byte = in.u8();
    }
    if (byte == 0 || byte == 0x01 || (byte >= 0xD0 && byte <= 0xD7)) continue;  // stuffing, TEM, RSTn
    if (byte >= 0xC0 && byte <= 0xCF && byte != 0xC4 && byte != 0xC8 && byte != 0xCC) {
      return jpeg_frame(in, byte, limits, header);
    }
    if (byte == 0xD8) return Verdict::bad("second start of image in the JPEG header");
    if (byte == 0xD9) return Verdict::bad("JPEG file without an image");
    if (byte == 0xDA) return Verdict::bad("JPEG scan before the frame header");
    if (!in.has(2)) return Verdict::bad("premature end of data in the JPEG header");
    const unsigned length = in.u16();
    if (length < 2) return Verdict::bad("wrong length of a JPEG marker");
    if (!in.skip(length - 2)) return Verdict::bad("premature end of data in the JPEG header");
  }
}

Verdict read_png_header(EncodedView bytes, const DecodeLimits& limits, ImageHeader& header) {
  Reader in(bytes);
  if (!in.has(33)) return Verdict::bad("premature end of data in the PNG header");
  in.skip(8);
  const uint32_t length = in.u32();
  const uint32_t type = in.u32();
  if (length != 13 || type != 0x49484452U) return Verdict::bad("PNG file does not begin with its header chunk");
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
    return Verdict::bad("PNG of colour type " + std::to_string(colour) + " with " + std::to_string(depth) +
                        " bits does not exist");
  }
  return check_size(width, height, limits, header);
}

}  // namespace

Verdict read_header(EncodedView bytes, const DecodeLimits& limits, ImageHeader& header) {
  header = ImageHeader{};
  if (bytes.empty()) return Verdict::bad("empty file");
  if (static_cast<int64_t>(bytes.size()) > limits.max_encoded_bytes) {
    return Verdict::bad("file of " + std::to_string(bytes.size()) + " bytes: over the limit of " +
                        std::to_string(limits.max_encoded_bytes));
  }
  static constexpr unsigned char jpeg_magic[3] = {0xFF, 0xD8, 0xFF};
  static constexpr unsigned char png_magic[8] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'};
  if (bytes.size() >= 3 && std::memcmp(bytes.data(), jpeg_magic, 3) == 0) {
    header.format = ImageFormat::jpeg;
    return read_jpeg_header(bytes, limits, header);
  }
  if (bytes.size() >= 8 && std::memcmp(bytes.data(), png_magic, 8) == 0) {
    header.format = ImageFormat::png;
    return read_png_header(bytes, limits, header);
  }
  return Verdict::bad("not a JPEG or PNG file (starts with " + hex_of(bytes) + ")");
}

}  // namespace penstock
