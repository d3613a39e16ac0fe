#include "runtime/decode/formats/png_decoder.h"

#include <spng.h>
#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <string_view>

#include "runtime/base/take_large.h"
#include "runtime/decode/color_math.h"

namespace penstock {
namespace {

constexpr size_t kMaxChunkBytes = size_t{8} << 20;
constexpr size_t kMaxChunksBytes = size_t{32} << 20;  // of all chunks kept, after inflating

constexpr size_t kMaxInflatedBytes = size_t{1} << 20;  // of one compressed text or colour profile: Pillow's

// What is read of a chunk before its data: length and type; behind them a checksum.
struct Chunk {
  size_t at = 0;
  size_t length = 0;
  uint32_t type = 0;
};
constexpr uint32_t kImageData = 0x49444154U;  // IDAT
constexpr uint32_t kImageEnd = 0x49454E44U;   // IEND
constexpr size_t kChunkHead = 8;
constexpr size_t kChunkFrame = 12;

uint32_t big_endian(EncodedView bytes, size_t at) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) value = value << 8 | std::to_integer<uint32_t>(bytes[at + i]);
  return value;
}

// False: not even length and type are there.
bool read_chunk(EncodedView bytes, size_t at, Chunk& chunk) {
  if (at > bytes.size() || bytes.size() - at < kChunkHead) return false;
  chunk = {at, big_endian(bytes, at), big_endian(bytes, at + 4)};
  return true;
}

bool is_whole(EncodedView bytes, const Chunk& chunk) {
  return bytes.size() - chunk.at >= kChunkFrame && bytes.size() - chunk.at - kChunkFrame >= chunk.length;
}

uint32_t checksum(EncodedView text) {
  const auto* data = reinterpret_cast<const Bytef*>(text.data());
  return static_cast<uint32_t>(crc32(crc32(0, nullptr, 0), data, static_cast<uInt>(text.size())));
}

// Pillow checks the sums of all chunks before the pixels, and of none after that.
bool heads_are_sound(EncodedView bytes) {
  Chunk chunk;
  for (size_t at = 8; read_chunk(bytes, at, chunk) && chunk.type != kImageData; at += kChunkFrame + chunk.length) {
    if (!is_whole(bytes, chunk)) return true;  // a matter for the decoder
    if (checksum(bytes.subspan(at + 4, chunk.length + 4)) != big_endian(bytes, at + kChunkHead + chunk.length)) {
      return false;
    }
  }
  return true;
}

// The file with what Pillow does not look at put right: the sums of the pixels' chunks, and an end that comes too early
// within or behind them (Pillow asks for no more data than the rows need). Empty: there are no pixels in it.
std::vector<std::byte> repaired(EncodedView bytes) {
  bool pixels = false;
  std::vector<std::byte> whole(bytes.begin(), bytes.begin() + std::min<std::ptrdiff_t>(8, std::ssize(bytes)));
  const auto put = [&whole](uint32_t value) {
    for (int shift = 24; shift >= 0; shift -= 8) whole.push_back(static_cast<std::byte>(value >> shift & 255));
  };
  Chunk chunk;
  for (size_t at = 8; read_chunk(bytes, at, chunk); at += kChunkFrame + chunk.length) {
    const bool there = is_whole(bytes, chunk);
    if (chunk.type == kImageEnd || (!there && chunk.type != kImageData)) break;
    const size_t length = std::min(chunk.length, bytes.size() - at - kChunkHead);
    put(static_cast<uint32_t>(length));
    const auto text = bytes.subspan(at + 4, length + 4);
    whole.insert(whole.end(), text.begin(), text.end());
    pixels = pixels || chunk.type == kImageData;
    put(chunk.type == kImageData ? checksum(text) : big_endian(bytes, at + kChunkHead + length));
    if (!there) break;
  }
  for (const uint32_t value : {0U, kImageEnd, 0xAE426082U}) put(value);
  return pixels ? whole : std::vector<std::byte>{};
}

struct FreeContext {
  void operator()(spng_ctx* ctx) const noexcept { spng_ctx_free(ctx); }
};

// The palette as Pillow fills it: a ramp of grey, then the file's entries over it. OpenCV has black beneath them.
struct Palette {
  uint8_t rgb[256][3];
  Palette(const spng_plte& plte, ColourConversion conversion) {
    const bool ramp = conversion == ColourConversion::pillow;
    for (unsigned i = 0; i < 256; ++i) rgb[i][0] = rgb[i][1] = rgb[i][2] = static_cast<uint8_t>(ramp ? i : 0);
    for (unsigned i = 0; i < plte.n_entries && i < 256; ++i) {
      rgb[i][0] = plte.entries[i].red;
      rgb[i][1] = plte.entries[i].green;
      rgb[i][2] = plte.entries[i].blue;
    }
  }
};

unsigned small_sample(const uint8_t* row, unsigned depth, size_t x) {
  const size_t bit = x * depth;
  return (row[bit / 8] >> (8 - depth - bit % 8)) & ((1U << depth) - 1);
}

// Columns [x0, x0 + count) of a row as the file has it (big-endian) to RGB.
void convert_row(const spng_ihdr& ihdr, const Palette& palette, ColourConversion conversion, const uint8_t* row, int x0,
                 int count, uint8_t* out) {
  const bool clips = conversion == ColourConversion::pillow;  // OpenCV keeps the high byte of grey, too
  const unsigned depth = ihdr.bit_depth;
  const bool grey = ihdr.color_type == SPNG_COLOR_TYPE_GRAYSCALE || ihdr.color_type == SPNG_COLOR_TYPE_GRAYSCALE_ALPHA;
  const size_t channels = ihdr.color_type == SPNG_COLOR_TYPE_GRAYSCALE || ihdr.color_type == SPNG_COLOR_TYPE_INDEXED ? 1
                          : ihdr.color_type == SPNG_COLOR_TYPE_GRAYSCALE_ALPHA                                       ? 2
                          : ihdr.color_type == SPNG_COLOR_TYPE_TRUECOLOR                                             ? 3
                                                                         : 4;
  const size_t sample_bytes = depth == 16 ? 2 : 1;
  for (int i = 0; i < count; ++i, out += 3) {
    const auto x = static_cast<size_t>(x0 + i);
    if (ihdr.color_type == SPNG_COLOR_TYPE_INDEXED) {
      const unsigned index = depth == 8 ? row[x] : small_sample(row, depth, x);
      for (int c = 0; c < 3; ++c) out[c] = palette.rgb[index][c];
    } else if (depth < 8) {
      const auto v = static_cast<uint8_t>(small_sample(row, depth, x) * (255U / ((1U << depth) - 1)));
      out[0] = out[1] = out[2] = v;
    } else {
      const uint8_t* pixel = row + x * channels * sample_bytes;
      if (clips && depth == 16 && ihdr.color_type == SPNG_COLOR_TYPE_GRAYSCALE) {
        out[0] = out[1] = out[2] = clip_grey16(pixel[0] << 8 | pixel[1]);
      } else if (grey) {
        out[0] = out[1] = out[2] = pixel[0];
      } else {
        for (size_t c = 0; c < 3; ++c) out[c] = pixel[c * sample_bytes];
      }
    }
  }
}

// Columns of a mask's row. A grey of one bit is 0 or 1, as Pillow has it; of two or four bits it is scaled, as an
// image.
void convert_mask_row(const spng_ihdr& ihdr, const uint8_t* row, int x0, int count, uint8_t* out) {
  const unsigned depth = ihdr.bit_depth;
  const bool indexed = ihdr.color_type == SPNG_COLOR_TYPE_INDEXED;
  const unsigned scale = indexed || depth == 1 || depth == 8 ? 1 : 255U / ((1U << depth) - 1);
  for (int i = 0; i < count; ++i, out += 3) {
    const auto x = static_cast<size_t>(x0 + i);
    out[0] = out[1] = out[2] = static_cast<uint8_t>((depth == 8 ? row[x] : small_sample(row, depth, x)) * scale);
  }
}

SampleStatus bad(int error) {
  if (error == SPNG_EMEM) {
    throw Error(ErrorKind::runtime, "out of memory while decoding a PNG file",
                "lower loader.threads or the decode limits");
  }
  if (error == SPNG_IO_EOF || error == SPNG_EOF || error == SPNG_EIDAT_TOO_SHORT) {
    return SampleStatus::bad("PNG: premature end of the data (truncated file)");
  }
  return SampleStatus::bad(std::string("PNG: ") + spng_strerror(error));
}

// Pillow refuses a file whose compressed texts or profile grow beyond a mebibyte; what stands after the pixels is not
// read here.
bool inflates_too_far(spng_ctx* ctx) {
  uint32_t count = 0;
  if (spng_get_text(ctx, nullptr, &count) == 0) {
    std::vector<spng_text> texts(count);
    if (spng_get_text(ctx, texts.data(), &count) == 0) {
      for (const spng_text& text : texts) {
        const bool compressed = text.type == SPNG_ZTXT || (text.type == SPNG_ITXT && text.compression_flag != 0);
        if (compressed && text.length > kMaxInflatedBytes) return true;
      }
    }
  }
  spng_iccp profile{};
  return spng_get_iccp(ctx, &profile) == 0 && profile.profile_len > kMaxInflatedBytes;
}

}  // namespace

SampleStatus PngDecoder::decode(EncodedView bytes, const ImageHeader& header, const Box& box, bool mask,
                                PixelBuffer& storage, PixelView& pixels) {
  bool in_chunks = false;
  const SampleStatus status = attempt(bytes, header, box, mask, storage, pixels, in_chunks);
  if (!in_chunks || !heads_are_sound(bytes)) return status;
  const std::vector<std::byte> whole = repaired(bytes);
  return whole.empty() ? status : attempt(whole, header, box, mask, storage, pixels, in_chunks);
}

// `in_chunks`: it was the chunks' sums or lengths, or the file's end.
SampleStatus PngDecoder::attempt(EncodedView bytes, const ImageHeader& header, const Box& box, bool mask,
                                 PixelBuffer& storage, PixelView& pixels, bool& in_chunks) {
  const auto stop = [&in_chunks](int code) {
    // The last: a length that no file has room for.
    in_chunks = code == SPNG_IO_EOF || code == SPNG_ECHUNK_CRC || code == SPNG_ECHUNK_STDLEN;
    return bad(code);
  };
  const std::unique_ptr<spng_ctx, FreeContext> owner(spng_ctx_new(0));
  spng_ctx* const ctx = owner.get();
  if (ctx == nullptr) throw Error(ErrorKind::runtime, "out of memory: cannot create a PNG decoder");
  int error = spng_set_image_limits(ctx, static_cast<uint32_t>(header.width), static_cast<uint32_t>(header.height));
  if (error == 0) error = spng_set_chunk_limits(ctx, kMaxChunkBytes, kMaxChunksBytes);
  if (error == 0) error = spng_set_crc_action(ctx, SPNG_CRC_ERROR, SPNG_CRC_ERROR);
  if (error == 0) error = spng_set_png_buffer(ctx, bytes.data(), bytes.size());
  spng_ihdr ihdr{};
  if (error == 0) error = spng_get_ihdr(ctx, &ihdr);
  if (error != 0) return stop(error);
  if (static_cast<int>(ihdr.width) != header.width || static_cast<int>(ihdr.height) != header.height) {
    return SampleStatus::bad("PNG: the headers contradict each other");
  }
  if (mask && (ihdr.bit_depth > 8 ||
               (ihdr.color_type != SPNG_COLOR_TYPE_INDEXED && ihdr.color_type != SPNG_COLOR_TYPE_GRAYSCALE))) {
    return SampleStatus::bad("a mask is a PNG file with a palette or of grey, of 8 bits at most");
  }
  size_t image_bytes = 0;
  error = spng_decoded_image_size(ctx, SPNG_FMT_RAW, &image_bytes);
  if (error == 0) error = spng_decode_image(ctx, nullptr, 0, SPNG_FMT_RAW, SPNG_DECODE_PROGRESSIVE);
  if (error != 0) return stop(error);
  if (inflates_too_far(ctx)) return SampleStatus::bad("PNG: a text or profile that inflates to more than a mebibyte");
  spng_plte plte{};
  if (ihdr.color_type == SPNG_COLOR_TYPE_INDEXED) {
    error = spng_get_plte(ctx, &plte);
    if (error != 0) return stop(error);
  }
  const Palette palette(plte, header.conversion);
  const auto convert = [&](const uint8_t* row, uint8_t* out) {
    if (mask) return convert_mask_row(ihdr, row, box.x, box.width, out);
    convert_row(ihdr, palette, header.conversion, row, box.x, box.width, out);
  };
  const size_t row_bytes = image_bytes / ihdr.height;
  storage.resize(box.width, box.height);
  pixels = PixelView{storage.row(0), box.width, box.height, storage.row_bytes()};
  const bool interlaced = ihdr.interlace_method != SPNG_INTERLACE_NONE;
  take_large(interlaced ? image_bytes : row_bytes);
  try {
    raw_.assign(interlaced ? image_bytes : row_bytes, 0);
  } catch (const std::bad_alloc&) {
    return bad(SPNG_EMEM);
  }
  if (interlaced) {
    // Rows of all passes land in place; only after the last pass is any row complete.
    do {
      spng_row_info info{};
      error = spng_get_row_info(ctx, &info);
      if (error == 0) error = spng_decode_row(ctx, raw_.data() + row_bytes * info.row_num, row_bytes);
    } while (error == 0);
    if (error != SPNG_EOI) return stop(error);
    for (int y = 0; y < box.height; ++y) {
      convert(raw_.data() + row_bytes * static_cast<size_t>(box.y + y), storage.row(y));
    }
    return SampleStatus::good();
  }
  const int rows = box.y + box.height;
  for (int y = 0; y < rows; ++y) {
    error = spng_decode_row(ctx, raw_.data(), row_bytes);
    // The image's last row may report its end at once.
    if (error != 0 && !(error == SPNG_EOI && y == header.height - 1)) return stop(error);
    if (y >= box.y) convert(raw_.data(), storage.row(y - box.y));
  }
  return SampleStatus::good();
}

std::vector<std::byte> png_exif_profile(EncodedView bytes) {
  std::vector<std::byte> profile;
  const std::unique_ptr<spng_ctx, FreeContext> owner(spng_ctx_new(0));
  spng_ctx* const ctx = owner.get();
  if (ctx == nullptr) throw Error(ErrorKind::runtime, "out of memory: cannot create a PNG decoder");
  uint32_t count = 0;
  if (spng_set_chunk_limits(ctx, kMaxChunkBytes, kMaxChunksBytes) != 0 ||
      spng_set_png_buffer(ctx, bytes.data(), bytes.size()) != 0 || spng_get_text(ctx, nullptr, &count) != 0) {
    return profile;
  }
  std::vector<spng_text> texts(count);
  if (spng_get_text(ctx, texts.data(), &count) != 0) return profile;
  // The last one counts, as in a dictionary.
  for (const spng_text& text : texts) {
    if (std::strcmp(text.keyword, "Raw profile type exif") != 0) continue;
    profile.clear();
    // Hexadecimal digits, after three lines of name and length.
    const std::string_view value(text.text, text.length);
    size_t at = 0;
    for (int line = 0; line < 3 && at != std::string_view::npos; ++line) {
      at = value.find('\n', at);
      if (at != std::string_view::npos) ++at;
    }
    int high = -1;
    for (; at < value.size(); ++at) {
      const char c = value[at];
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) continue;
      if (high >= 0) profile.push_back(static_cast<std::byte>(high << 4 | digit));
      high = high >= 0 ? -1 : digit;
    }
  }
  return profile;
}

std::string png_library_version() {
  return std::string("libspng ") + spng_version_string();
}

}  // namespace penstock
