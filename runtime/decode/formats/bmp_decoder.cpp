#include "runtime/decode/formats/bmp_decoder.h"

#include <algorithm>
#include <array>

#include "runtime/base/take_large.h"
#include "runtime/decode/header_reader.h"

namespace penstock {
namespace {

// How a pixel is stored: Pillow's raw modes.
enum class Raw : uint8_t { index1, index4, index8, bit, bgr15, bgr16, bgr, bgrx, xbgr, rgbx };

struct BmpHeader {
  uint64_t width = 0;
  uint64_t height = 0;
  bool top_down = false;
  Raw raw = Raw::bgr;
  bool palette = false;  // the indices go through `colours`
  bool runs = false;
  bool runs4 = false;
  size_t data = 0;
  size_t stride = 0;
  std::array<std::array<uint8_t, 3>, 256> colours{};
};

size_t bits_of(Raw raw) {
  switch (raw) {
    case Raw::index1:
    case Raw::bit: return 1;
    case Raw::index4: return 4;
    case Raw::index8: return 8;
    case Raw::bgr15:
    case Raw::bgr16: return 16;
    case Raw::bgr: return 24;
    default: return 32;
  }
}

SampleStatus short_bmp_header() {
  return SampleStatus::bad("premature end of data in the BMP header");
}

// The bit fields that Pillow knows; false: not one of them.
bool raw_of_masks(unsigned bits, const std::array<uint32_t, 4>& m, Raw& raw) {
  using Masks = std::array<uint32_t, 4>;
  if (bits == 32) {
    if (m == Masks{0xFF0000, 0xFF00, 0xFF, 0} || m == Masks{0xFF0000, 0xFF00, 0xFF, 0xFF000000} || m == Masks{}) {
      raw = Raw::bgrx;
    } else if (m == Masks{0xFF000000, 0xFF0000, 0xFF00, 0} || m == Masks{0xFF000000, 0xFF0000, 0xFF00, 0xFF}) {
      raw = Raw::xbgr;
    } else if (m == Masks{0xFF, 0xFF00, 0xFF0000, 0xFF000000}) {
      raw = Raw::rgbx;
    } else {
      return false;
    }
    return true;
  }
  const Masks rgb{m[0], m[1], m[2], 0};
  if (bits == 24 && rgb == Masks{0xFF0000, 0xFF00, 0xFF, 0}) {
    raw = Raw::bgr;
  } else if (bits == 16 && rgb == Masks{0xF800, 0x7E0, 0x1F, 0}) {
    raw = Raw::bgr16;
  } else if (bits == 16 && rgb == Masks{0x7C00, 0x3E0, 0x1F, 0}) {
    raw = Raw::bgr15;
  } else {
    return false;
  }
  return true;
}

// The palette, and whether Pillow drops it as a ramp of grey (then the raw mode changes, whatever the bits).
SampleStatus read_palette(EncodedView bytes, size_t at, uint32_t colours, size_t entry_bytes, BmpHeader& bmp) {
  if (colours > 65536) return SampleStatus::bad("BMP: a palette of " + std::to_string(colours) + " colours");
  const size_t left = bytes.size() - std::min(bytes.size(), at);
  const size_t size = std::min(left, entry_bytes * colours);
  const uint8_t* entries = raw_bytes(bytes) + std::min(bytes.size(), at);
  bool grey = size / entry_bytes >= colours || size + entry_bytes - 3 >= entry_bytes * colours;
  for (uint32_t i = 0; grey && i < colours; ++i) {
    const auto value = static_cast<uint8_t>(colours == 2 && i == 1 ? 255 : i);
    const uint8_t* entry = entries + i * entry_bytes;
    grey = entry[0] == value && entry[1] == value && entry[2] == value;
  }
  bmp.palette = !grey;
  if (grey) {
    bmp.raw = colours == 2 ? Raw::bit : Raw::index8;
    for (size_t i = 0; i < 256; ++i) bmp.colours[i].fill(static_cast<uint8_t>(i));
    return SampleStatus::good();
  }
  if (size / entry_bytes > 256) return SampleStatus::bad("BMP: a palette of more than 256 colours");
  for (size_t i = 0; i < 256; ++i) {
    const uint8_t* entry = entries + i * entry_bytes;
    for (size_t c = 0; c < 3; ++c) {
      bmp.colours[i][c] = i < size / entry_bytes ? entry[2 - c] : static_cast<uint8_t>(i);
    }
  }
  return SampleStatus::good();
}

SampleStatus parse(EncodedView bytes, BmpHeader& bmp) {
  HeaderReader in(bytes);
  if (!in.has(18)) return short_bmp_header();
  in.skip(10);
  size_t offset = in.le32();
  const uint32_t header_bytes = in.le32();
  if (header_bytes != 12 && header_bytes != 40 && header_bytes != 64 && header_bytes != 108 && header_bytes != 124) {
    return SampleStatus::bad("BMP: a header of " + std::to_string(header_bytes) + " bytes is not supported");
  }
  if (!in.has(header_bytes - 4)) return short_bmp_header();
  const size_t header_end = in.at() + header_bytes - 4;
  unsigned bits = 0;
  uint32_t compression = 0;
  uint32_t colours = 0;
  if (header_bytes == 12) {
    bmp.width = in.le16();
    bmp.height = in.le16();
    in.skip(2);
    bits = in.le16();
  } else {
    bmp.width = in.le32();
    const uint32_t height = in.le32();
    bmp.top_down = height >> 24 == 0xFF;
    bmp.height = bmp.top_down ? (uint64_t{1} << 32) - height : height;
    in.skip(2);
    bits = in.le16();
    compression = in.le32();
    in.skip(12);
    colours = in.le32();
  }
  switch (bits) {
    case 1: bmp.raw = Raw::index1; break;
    case 4: bmp.raw = Raw::index4; break;
    case 8: bmp.raw = Raw::index8; break;
    case 16: bmp.raw = Raw::bgr15; break;
    case 24: bmp.raw = Raw::bgr; break;
    case 32: bmp.raw = Raw::bgrx; break;
    default: return SampleStatus::bad("BMP: " + std::to_string(bits) + " bits a pixel are not supported");
  }
  if (colours == 0) colours = bits < 32 ? uint32_t{1} << bits : 0;
  if (offset == 14 + size_t{header_bytes} && bits <= 8) offset += 4 * size_t{colours};
  size_t at = header_end;
  if (compression == 3) {
    std::array<uint32_t, 4> masks{};
    HeaderReader fields(bytes, header_bytes >= 56 ? 14 + 40 : header_end);
    const size_t count = header_bytes >= 56 ? 4 : 3;
    if (!fields.has(count * 4)) return short_bmp_header();
    for (size_t i = 0; i < count; ++i) masks[i] = fields.le32();
    if (header_bytes < 56) at = fields.at();
    if (!raw_of_masks(bits, masks, bmp.raw)) return SampleStatus::bad("BMP: unsupported bit fields");
  } else if (compression == 1 || compression == 2) {
    bmp.runs = true;
    bmp.runs4 = compression == 2;
    if (bits > 8) return SampleStatus::bad("BMP: run lengths of " + std::to_string(bits) + " bits");
  } else if (compression != 0) {
    return SampleStatus::bad("BMP: compression " + std::to_string(compression) + " is not supported");
  }
  if (bits <= 8) {
    const size_t entry_bytes = header_bytes == 12 ? 3 : 4;
    const SampleStatus status = read_palette(bytes, at, colours, entry_bytes, bmp);
    if (!status.ok()) return status;
    at = std::min(bytes.size(), at + entry_bytes * colours);
    if (bmp.runs && bmp.raw == Raw::bit) return SampleStatus::bad("BMP: run lengths of a black and white image");
  }
  bmp.data = offset != 0 ? offset : at;
  bmp.stride = static_cast<size_t>((bmp.width * bits + 31) >> 3) & ~size_t{3};
  return SampleStatus::good();
}

// BmpRleDecoder: the indices in the file's order of rows; false: fewer than the image has.
bool expand_runs(EncodedView bytes, const BmpHeader& bmp, std::vector<uint8_t>& out) {
  HeaderReader in(bytes, bmp.data);
  const size_t width = bmp.width;
  const size_t total = width * bmp.height;
  const auto zeros = [&](size_t count) {
    out.insert(out.end(), std::min(count, total - std::min(total, out.size())), 0);
  };
  size_t x = 0;
  out.clear();
  take_large(2 * total);  // a vector that grows is there twice
  while (out.size() < total) {
    if (!in.has(2)) break;
    size_t count = in.u8();
    const unsigned byte = in.u8();
    if (count > 0) {
      if (x + count > width) count = width > x ? width - x : 0;
      for (size_t i = 0; i < count; ++i) {
        out.push_back(static_cast<uint8_t>(!bmp.runs4 ? byte : i % 2 == 0 ? byte >> 4 : byte & 15));
      }
      x += count;
    } else if (byte == 0) {
      zeros((width - out.size() % width) % width);
      x = 0;
    } else if (byte == 1) {
      break;
    } else if (byte == 2) {
      // A step that Pillow 9.4 takes from the two bytes after its own; where they are missing it fails.
      if (!in.skip(2)) break;
      if (!in.has(2)) return false;
      const size_t right = in.u8();
      zeros(right + in.u8() * width);
      x = out.size() % width;
    } else {
      const size_t stored = bmp.runs4 ? byte / 2 : byte;
      bool whole = true;
      for (size_t i = 0; i < stored; ++i) {
        if (!in.has(1)) {
          whole = false;
          break;
        }
        const unsigned value = in.u8();
        if (bmp.runs4) out.push_back(static_cast<uint8_t>(value >> 4));
        out.push_back(static_cast<uint8_t>(bmp.runs4 ? value & 15 : value));
      }
      if (!whole) break;
      x += byte;
      if (in.at() % 2 != 0) in.skip(1);
    }
  }
  return out.size() >= total;
}

// Five or six bits as eight: Pillow scales them, OpenCV shifts.
uint8_t stretched(int value, int bits, ColourConversion conversion) {
  if (conversion == ColourConversion::opencv) return static_cast<uint8_t>(value << (8 - bits));
  return static_cast<uint8_t>(value * 255 / ((1 << bits) - 1));
}

void convert_row(const BmpHeader& bmp, ColourConversion conversion, const uint8_t* row, const Box& box, uint8_t* out) {
  for (int i = 0; i < box.width; ++i, out += 3) {
    const auto x = static_cast<size_t>(box.x + i);
    switch (bmp.raw) {
      case Raw::bit: out[0] = out[1] = out[2] = (row[x / 8] >> (7 - x % 8) & 1) != 0 ? 255 : 0; break;
      case Raw::index1:
      case Raw::index4:
      case Raw::index8: {
        const unsigned index = bmp.raw == Raw::index8   ? row[x]
                               : bmp.raw == Raw::index4 ? row[x / 2] >> (x % 2 == 0 ? 4 : 0) & 15U
                                                        : row[x / 8] >> (7 - x % 8) & 1U;
        std::copy(bmp.colours[index].begin(), bmp.colours[index].end(), out);
        break;
      }
      case Raw::bgr15:
      case Raw::bgr16: {
        const int pixel = row[x * 2] | row[x * 2 + 1] << 8;
        const bool six = bmp.raw == Raw::bgr16;
        out[0] = stretched(pixel >> (six ? 11 : 10) & 31, 5, conversion);
        out[1] = six ? stretched(pixel >> 5 & 63, 6, conversion) : stretched(pixel >> 5 & 31, 5, conversion);
        out[2] = stretched(pixel & 31, 5, conversion);
        break;
      }
      case Raw::bgr:
      case Raw::bgrx: {
        const uint8_t* p = row + x * (bmp.raw == Raw::bgr ? 3 : 4);
        out[0] = p[2];
        out[1] = p[1];
        out[2] = p[0];
        break;
      }
      case Raw::xbgr:
        for (size_t c = 0; c < 3; ++c) out[c] = row[x * 4 + 3 - c];
        break;
      case Raw::rgbx: std::copy_n(row + x * 4, 3, out); break;
    }
  }
}

}  // namespace

SampleStatus read_bmp_header(EncodedView bytes, const DecodeLimits& limits, ImageHeader& header) {
  BmpHeader bmp;
  const SampleStatus status = parse(bytes, bmp);
  return status.ok() ? check_size(bmp.width, bmp.height, limits, header) : status;
}

SampleStatus BmpDecoder::decode(EncodedView bytes, const ImageHeader& header, const Box& box, PixelBuffer& storage,
                                PixelView& pixels) {
  BmpHeader bmp;
  const SampleStatus status = parse(bytes, bmp);
  if (!status.ok()) return status;
  const auto height = static_cast<size_t>(header.height);
  if (bmp.width != static_cast<size_t>(header.width) || bmp.height != height) {
    return SampleStatus::bad("BMP: the headers contradict each other");
  }
  if (header.conversion == ColourConversion::opencv && (bmp.runs4 || bmp.raw == Raw::xbgr || bmp.raw == Raw::rgbx)) {
    return SampleStatus::bad("BMP: run lengths of 4 bits and unusual bit fields are not read with arithmetic: opencv");
  }
  const uint8_t* rows = nullptr;
  size_t stride = bmp.stride;
  if (bmp.runs) {
    if (!expand_runs(bytes, bmp, indices_)) return SampleStatus::bad("BMP: premature end of the data (truncated file)");
    rows = indices_.data();
    stride = bmp.width;
    bmp.raw = Raw::index8;
  } else {
    const size_t row_bytes = (bmp.width * bits_of(bmp.raw) + 7) / 8;
    if (stride < row_bytes) return SampleStatus::bad("BMP: a palette of grey that does not fit the bits of a pixel");
    const size_t available = bytes.size() - std::min(bytes.size(), bmp.data);
    if (available < stride * (height - 1) + row_bytes) {
      return SampleStatus::bad("BMP: premature end of the data (truncated file)");
    }
    rows = raw_bytes(bytes) + bmp.data;
  }
  storage.resize(box.width, box.height);
  pixels = {storage.row(0), box.width, box.height, storage.row_bytes()};
  for (int y = 0; y < box.height; ++y) {
    const auto line = static_cast<size_t>(box.y + y);
    convert_row(bmp, header.conversion, rows + stride * (bmp.top_down ? line : height - 1 - line), box, storage.row(y));
  }
  return SampleStatus::good();
}

}  // namespace penstock
