#include "runtime/decode/formats/gif_decoder.h"

#include <algorithm>
#include <array>

#include "runtime/base/take_large.h"
#include "runtime/decode/header_reader.h"

namespace penstock {
namespace {

struct GifHeader {
  uint32_t width = 0;  // of the canvas
  uint32_t height = 0;
  Box frame;
  bool interlaced = false;
  int background = 0;  // the index where the frame does not reach
  unsigned code_bits = 0;
  size_t data = 0;
  std::array<std::array<uint8_t, 3>, 256> colours{};
};

// A file that ends before its first frame's data: Pillow raises one of several errors, and all of them refuse it.
SampleStatus short_gif_header() {
  return SampleStatus::bad("premature end of data in the GIF header");
}

bool read_colours(HeaderReader& in, unsigned flags, GifHeader& gif) {
  const size_t count = size_t{2} << (flags & 7);
  if (!in.has(count * 3)) return false;
  for (size_t i = 0; i < 256; ++i) {
    for (size_t c = 0; c < 3; ++c) gif.colours[i][c] = static_cast<uint8_t>(i < count ? in.u8() : i);
  }
  return true;
}

// A data block; false where there is none, as at the terminator. A block that the file's end cuts is taken as it is.
bool read_block(EncodedView bytes, HeaderReader& in, EncodedView& block) {
  if (!in.has(1)) return false;
  const size_t size = in.u8();
  if (size == 0) return false;
  const size_t there = std::min(size, bytes.size() - in.at());
  block = bytes.subspan(in.at(), there);
  in.skip(there);
  return true;
}

// One extension, after its introducer; false: Pillow refuses the file for it.
bool read_extension(EncodedView bytes, HeaderReader& in, int& transparent) {
  if (!in.has(1)) return false;
  const unsigned label = in.u8();
  EncodedView block;
  const bool any = read_block(bytes, in, block);
  if (label == 254) {
    for (bool more = any; more;) more = read_block(bytes, in, block);
    return true;
  }
  if (label == 249) {
    if (!any || block.size() < 3) return false;
    const bool is_transparent = (std::to_integer<unsigned>(block[0]) & 1) != 0;
    if (is_transparent && block.size() < 4) return false;
    if (is_transparent) transparent = std::to_integer<int>(block[3]);
  } else if (label == 255) {
    if (!any) return false;
    static constexpr char looping[] = "NETSCAPE2.0";
    const auto* text = reinterpret_cast<const char*>(block.data());
    const bool loops = block.size() >= 11 && std::equal(looping, looping + 11, text);
    if (loops && !read_block(bytes, in, block)) return false;
  }
  while (read_block(bytes, in, block)) {
  }
  return true;
}

SampleStatus parse(EncodedView bytes, GifHeader& gif) {
  HeaderReader in(bytes);
  if (!in.has(13)) return short_gif_header();
  in.skip(6);
  gif.width = in.le16();
  gif.height = in.le16();
  const unsigned flags = in.u8();
  in.skip(2);
  for (size_t i = 0; i < 256; ++i) gif.colours[i].fill(static_cast<uint8_t>(i));
  if ((flags & 128) != 0 && !read_colours(in, flags, gif)) return short_gif_header();
  int transparent = -1;
  for (;;) {
    if (!in.has(1)) return short_gif_header();
    const unsigned tag = in.u8();
    if (tag == ';') return SampleStatus::bad("GIF: no image in the file");
    if (tag == '!') {
      if (!read_extension(bytes, in, transparent)) return short_gif_header();
    } else if (tag == ',') {
      break;
    }
  }
  if (!in.has(9)) return short_gif_header();
  const uint32_t left = in.le16();
  const uint32_t top = in.le16();
  const uint32_t width = in.le16();
  const uint32_t height = in.le16();
  const unsigned frame_flags = in.u8();
  gif.width = std::max(gif.width, left + width);
  gif.height = std::max(gif.height, top + height);
  gif.frame = {static_cast<int>(left), static_cast<int>(top), static_cast<int>(width), static_cast<int>(height)};
  gif.interlaced = (frame_flags & 64) != 0;
  if ((frame_flags & 128) != 0 && !read_colours(in, frame_flags, gif)) return short_gif_header();
  if (!in.has(1)) return short_gif_header();
  gif.code_bits = in.u8();
  gif.data = in.at();
  if (transparent >= 0) gif.background = transparent;
  return SampleStatus::good();
}

// GifDecode.c: one state machine, so that damaged files end as they do there.
class Lzw {
 public:
  Lzw(EncodedView bytes, const GifHeader& gif, uint8_t* out)
      : data_(raw_bytes(bytes)),
        size_(bytes.size()),
        at_(gif.data),
        loaded_(gif.data),
        width_(gif.frame.width),
        height_(gif.frame.height),
        interlace_(gif.interlaced ? 1 : 0),
        step_(gif.interlaced ? 8 : 1),
        out_(out),
        bits_(static_cast<int>(gif.code_bits)),
        clear_(1 << gif.code_bits) {}

  SampleStatus run() {
    if (!load()) return truncated();
    reset();
    for (;;) {
      int code = 0;
      if (!next_code(code)) return truncated();
      if (code == clear_) {
        reset();
        continue;
      }
      if (code == clear_ + 1) {
        // An end code ends this piece of the file only.
        if (!load()) return truncated();
        continue;
      }
      if (!expand(code)) return SampleStatus::bad("GIF: broken data");
      if (!put(last_data_)) return SampleStatus::good();
      for (; first_ < kTable; ++first_) {
        if (!put(string_[static_cast<size_t>(first_)])) return SampleStatus::good();
      }
    }
  }

 private:
  static constexpr int kBits = 12;
  static constexpr int kTable = 1 << kBits;
  static constexpr size_t kPiece = 65536;

  static SampleStatus truncated() { return SampleStatus::bad("GIF: premature end of the data (truncated file)"); }

  bool load() {
    if (loaded_ >= size_) return false;
    loaded_ = std::min(size_, loaded_ + kPiece);
    return true;
  }

  void reset() {
    next_ = clear_ + 2;
    code_size_ = bits_ + 1;
    fresh_ = true;
  }

  bool next_code(int& code) {
    while (held_ < code_size_) {
      if (block_ > 0) {
        window_ |= uint32_t{data_[at_++]} << held_;
        held_ += 8;
        --block_;
        continue;
      }
      while (at_ >= loaded_ || loaded_ - at_ < size_t{data_[at_]} + 1) {
        if (!load()) return false;
      }
      block_ = data_[at_++];
    }
    code = static_cast<int>(window_ & ((1U << code_size_) - 1));
    window_ >>= code_size_;
    held_ -= code_size_;
    return true;
  }

  // The string of a code: its first value to last_data_, the others to string_ from first_ on.
  bool expand(int code) {
    if (fresh_) {
      if (code > clear_) return false;
      last_data_ = static_cast<uint8_t>(code);
      last_code_ = code;
      fresh_ = false;
      return true;
    }
    if (code > next_) return false;
    int c = code;
    if (c == next_) {
      string_[static_cast<size_t>(--first_)] = last_data_;
      c = last_code_;
    }
    while (c >= clear_) {
      if (first_ <= 0 || c >= kTable) return false;
      string_[static_cast<size_t>(--first_)] = data_of_[static_cast<size_t>(c)];
      c = link_of_[static_cast<size_t>(c)];
    }
    last_data_ = static_cast<uint8_t>(c);
    if (next_ < kTable) {
      data_of_[static_cast<size_t>(next_)] = last_data_;
      link_of_[static_cast<size_t>(next_)] = static_cast<uint16_t>(last_code_);
      if (next_ == (1 << code_size_) - 1 && code_size_ < kBits) ++code_size_;
      ++next_;
    }
    last_code_ = code;
    return true;
  }

  // False: that was the last pixel.
  bool put(uint8_t value) {
    out_[static_cast<size_t>(y_) * static_cast<size_t>(width_) + static_cast<size_t>(x_)] = value;
    if (++x_ < width_) return true;
    x_ = 0;
    y_ += step_;
    while (y_ >= height_) {
      switch (interlace_) {
        case 1: y_ = 4; break;
        case 2:
          step_ = 4;
          y_ = 2;
          break;
        case 3:
          step_ = 2;
          y_ = 1;
          break;
        default: return false;
      }
      interlace_ = interlace_ == 3 ? 0 : interlace_ + 1;
    }
    return true;
  }

  const uint8_t* data_;
  size_t size_;
  size_t at_;
  size_t loaded_;  // as far as Pillow has read the file
  int width_;
  int height_;
  int interlace_;  // the pass; 0: the last, or none
  int step_;
  uint8_t* out_;
  int bits_;
  int clear_;
  int x_ = 0;
  int y_ = 0;
  uint32_t window_ = 0;
  int held_ = 0;
  size_t block_ = 0;
  int code_size_ = 0;
  int next_ = 0;
  bool fresh_ = true;
  int last_code_ = 0;
  uint8_t last_data_ = 0;
  int first_ = kTable;
  std::array<uint8_t, kTable> string_{};
  std::array<uint8_t, kTable> data_of_{};
  std::array<uint16_t, kTable> link_of_{};
};

}  // namespace

SampleStatus read_gif_header(EncodedView bytes, const DecodeLimits& limits, ImageHeader& header) {
  GifHeader gif;
  const SampleStatus status = parse(bytes, gif);
  return status.ok() ? check_size(gif.width, gif.height, limits, header) : status;
}

SampleStatus GifDecoder::decode(EncodedView bytes, const ImageHeader& header, const Box& box, PixelBuffer& storage,
                                PixelView& pixels) {
  GifHeader gif;
  SampleStatus status = parse(bytes, gif);
  if (!status.ok()) return status;
  if (gif.width != static_cast<uint32_t>(header.width) || gif.height != static_cast<uint32_t>(header.height)) {
    return SampleStatus::bad("GIF: the headers contradict each other");
  }
  // Pillow takes a frame without a left and a right edge for the whole canvas.
  if (gif.frame.x == 0 && gif.frame.width == 0) gif.frame = {0, 0, header.width, header.height};
  if (gif.frame.width <= 0 || gif.frame.height <= 0) return SampleStatus::bad("GIF: an empty frame");
  if (gif.code_bits > 12) return SampleStatus::bad("GIF: codes of " + std::to_string(gif.code_bits) + " bits");
  take_large(static_cast<size_t>(gif.frame.width) * static_cast<size_t>(gif.frame.height));
  indices_.assign(static_cast<size_t>(gif.frame.width) * static_cast<size_t>(gif.frame.height), 0);
  status = Lzw(bytes, gif, indices_.data()).run();
  if (!status.ok()) return status;
  storage.resize(box.width, box.height);
  pixels = {storage.row(0), box.width, box.height, storage.row_bytes()};
  for (int y = 0; y < box.height; ++y) {
    uint8_t* out = storage.row(y);
    const int line = box.y + y - gif.frame.y;
    for (int x = 0; x < box.width; ++x, out += 3) {
      const int column = box.x + x - gif.frame.x;
      const bool inside = line >= 0 && line < gif.frame.height && column >= 0 && column < gif.frame.width;
      const size_t index =
          inside
              ? indices_[static_cast<size_t>(line) * static_cast<size_t>(gif.frame.width) + static_cast<size_t>(column)]
              : static_cast<size_t>(gif.background);
      std::copy(gif.colours[index].begin(), gif.colours[index].end(), out);
    }
  }
  return SampleStatus::good();
}

}  // namespace penstock
